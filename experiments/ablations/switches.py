"""What can be taken away from the learned policy and its training, to see what each part is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from experiments.ablations.views import AsReported, OpenBatchView
from policies.base import FleetView, FloatArray, Policy, Request
from policies.expected_latency import ExpectedLatency
from policies.learned.features import Inputs, inputs
from policies.learned.network import Network
from policies.learned.policy import shares
from simulator.view import BatchView


@dataclass(frozen=True, slots=True)
class Ablation:
    """All of it by default."""

    prior: bool = True
    """Whether the expected cost is in the score; without, the learned term stands alone."""
    dead_reckoning: bool = True
    """Whether queues are worked off, and others' picks assumed, between two reports."""
    executing_known: bool = True
    """Whether what executes is told from what waits, and taken in by no batch that comes."""
    common_random_numbers: bool = True
    """Whether the two of a pair play the same episode."""
    symmetric: bool = True
    """Whether the second of a pair has the opposite noise; without, it has none."""
    fixed_workers: int = 0
    """Above 0: a plain network over the inputs of so many workers, in place of one that is shared by all."""


class Look:
    """What the policy sees, to be asked at every decision of a run, in order."""

    def __init__(self, ablation: Ablation) -> None:
        self._ablation = ablation
        self._as_reported = AsReported()

    def __call__(self, request: Request, view: FleetView) -> Inputs:
        """The network's inputs."""
        if not self._ablation.dead_reckoning:
            view = self._as_reported(cast(BatchView, view))
        elif not self._ablation.executing_known:
            view = OpenBatchView(cast(BatchView, view))
        given = inputs(request, view)
        return given if self._ablation.prior else given._replace(relative_cost=np.zeros_like(given.relative_cost))


@dataclass(frozen=True)
class OpenBatches(Policy):
    """`expected_latency` with the estimate of before: a batch that executes may still be joined."""

    name: ClassVar[str] = "open_batches"
    summary: ClassVar[str] = "expected_latency that does not tell what executes from what waits."
    source: ClassVar[str] = "See balancer/core/README.md, backlog."

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """As `ExpectedLatency`."""
        return ExpectedLatency().probabilities(request, OpenBatchView(cast(BatchView, fleet)))


@dataclass(frozen=True, eq=False)
class Trial(Policy):
    """A network as a policy, for one run in the simulator."""

    name: ClassVar[str] = "trial"
    summary: ClassVar[str] = "A network with something taken away."
    source: ClassVar[str] = "See experiments/ablations."

    network: Network
    look: Look

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """As `Learned`."""
        return shares(self.network, self.look(request, fleet), fleet)
