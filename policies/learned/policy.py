"""The learned policy: least expected completion, corrected by a small network trained by policy gradient."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request, from_file, option
from policies.learned.artifact import Artifact, read_artifact
from policies.learned.explained import contributions
from policies.learned.features import Inputs, inputs
from policies.learned.network import Network

SHIPPED = "shipped"
"""The option `file` that means the one that comes with the balancer."""
SHIPPED_FILE = "shipped.npz"
"""In this package."""


@functools.cache
def shipped() -> Artifact:
    """The policy that comes with the balancer: data of this package, read once, as its code is."""
    return read_artifact(importlib.resources.files("policies.learned").joinpath(SHIPPED_FILE).read_bytes(), SHIPPED)


@dataclasses.dataclass(frozen=True)
class Learned(Policy):
    """Softmax of `beta * (learned term - (cost / best - 1))`, cost as in `expected_latency`.

    The heuristic's cost is what is known beforehand; the term is what training found to be missing: how much others'
    delay counts where, how far estimates are to be trusted, what other balancers do. It is an equivariant network
    of the inputs in `features.py`.
    """

    name: ClassVar[str] = "learned"
    summary: ClassVar[str] = "Expected completion, corrected by a network trained in the simulator."
    source: ClassVar[str] = "Sehnke et al. 2010, Parameter-exploring policy gradients, Neural Networks 23"
    trained: ClassVar[bool] = True
    score_unit: ClassVar[str] = "seconds of expected completion"

    file: str = option(SHIPPED, "A file that `balancer train` wrote; shipped: the balancer's own", file=True)
    artifact: Artifact | None = from_file("What is in the file")

    def with_files(self, read: Callable[[str], bytes]) -> Policy:
        """The policy with the file's network; ValueError says what is wrong with the file."""
        if self.file == SHIPPED:
            return self
        return dataclasses.replace(self, artifact=read_artifact(read(self.file), self.file))

    @property
    def digest(self) -> str:
        """See `Policy`."""
        return self.loaded.digest

    @property
    def loaded(self) -> Artifact:
        """The file's content; ValueError where `with_files` was not called."""
        if self.artifact is not None:
            return self.artifact
        if self.file == SHIPPED:
            return shipped()
        raise ValueError(f"policy learned: {self.file} was not read; make the policy by build_policy, or with_files")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Softmax shares, `(..., n)`."""
        return shares(self.loaded.network, inputs(request, fleet), fleet)

    def out_of_range(self, request: Request, fleet: FleetView) -> float | FloatArray:
        """See `Policy`; inputs are logarithms, so one width beyond is far beyond."""
        trained = self.loaded
        x, eligible = inputs(request, fleet).features, fleet.eligible[..., None]
        over = (x - trained.highest) / trained.width
        under = (trained.lowest - x) / trained.width
        excess = np.where(eligible, np.maximum(over, under), 0.0)
        farthest: FloatArray = np.maximum.reduce(excess, axis=(-2, -1), initial=0.0)
        return farthest

    def contributions(self, request: Request, fleet: FleetView) -> Mapping[str, FloatArray]:
        """See `Policy` and `explained`."""
        return contributions(self.loaded.network, inputs(request, fleet), fleet.eligible)


def shares(network: Network, given: Inputs, fleet: FleetView) -> FloatArray:
    """The softmax, all zero where none is eligible; `(..., n)`."""
    eligible = fleet.eligible
    score = network.term(given.features, given.terms, eligible)
    score -= given.relative_cost
    np.copyto(score, -np.inf, where=~eligible)
    score -= np.maximum.reduce(score, axis=-1, keepdims=True, initial=-1e300)
    score *= network.beta
    shared: FloatArray = np.exp(score, out=score)
    # The best has 1 before the division, so a smaller total means that none is eligible.
    shared /= np.maximum(np.add.reduce(shared, axis=-1, keepdims=True), 1.0)
    return shared
