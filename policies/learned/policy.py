"""The learned policy: least expected completion, corrected by a small network trained by policy gradient."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from policies.base import BoolArray, FleetView, FloatArray, Policy, Request, from_file, option
from policies.learned.artifact import EVERYTHING, Artifact, make_artifact, read_artifact
from policies.learned.features import FEATURES, TERMS, Inputs, inputs
from policies.learned.network import Network, untrained


@functools.cache
def _start() -> Artifact:
    """A network whose term is zero; every input is within its range."""
    return make_artifact(untrained(), *EVERYTHING, {})


@dataclasses.dataclass(frozen=True)
class Learned(Policy):
    """Softmax of `beta * (learned term - (cost / best - 1))`, cost as in `expected_latency`, and a toll.

    The heuristic's cost is what is known beforehand; for one fleet, training sets its numbers, and a toll for each
    model and worker, which parts the workers among the models as no rule over nameless workers can. The term is what
    is missing still: how much others' delay counts where, how far estimates are to be trusted, what other balancers
    do. It is an equivariant network of the inputs in `features.py`.

    Made without a file, which no config can do, it is where training starts: it decides as `expected_latency` with
    `temperature` 0.05 does.
    """

    name: ClassVar[str] = "learned"
    summary: ClassVar[str] = "Expected completion, trained for your fleet: numbers, tolls, a network."
    source: ClassVar[str] = "Hansen and Ostermeier 2001 (CMA-ES); Sehnke et al. 2010 (policy gradients)"
    trained: ClassVar[bool] = True
    score_unit: ClassVar[str] = "seconds of expected completion"

    file: str = option("", "The weights: a file that `balancer train --out FOLDER` wrote, FOLDER/policy.npz", file=True)
    artifact: Artifact | None = from_file("What is in the file")

    def with_files(self, read: Callable[[str], bytes]) -> Policy:
        """The policy with the file's network; ValueError says what is wrong with the file."""
        return dataclasses.replace(self, artifact=read_artifact(read(self.file), self.file))

    @property
    def digest(self) -> str:
        return self.artifact.digest if self.artifact else ""

    @property
    def loaded(self) -> Artifact:
        """The file's content; ValueError where `with_files` was not called."""
        if self.artifact is not None:
            return self.artifact
        if not self.file:
            return _start()
        raise ValueError(f"policy learned: {self.file} was not read; make the policy by build_policy, or with_files")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Softmax shares, `(..., n)`."""
        return shares(self.loaded.network, self._inputs(request, fleet), fleet)

    def _inputs(self, request: Request, fleet: FleetView) -> Inputs:
        network = self.loaded.network
        return inputs(request, fleet, network.numbers, network.tolls)

    def out_of_range(self, request: Request, fleet: FleetView) -> float | FloatArray:
        """See `Policy`; inputs are logarithms, so one width beyond is far beyond."""
        trained = self.loaded
        if not trained.network.corrects:
            return 0.0
        x, eligible = self._inputs(request, fleet).features, fleet.eligible[..., None]
        over = (x - trained.highest) / trained.width
        under = (trained.lowest - x) / trained.width
        excess = np.where(eligible, np.maximum(over, under), 0.0)
        farthest: FloatArray = np.maximum.reduce(excess, axis=(-2, -1), initial=0.0)
        return farthest

    def contributions(self, request: Request, fleet: FleetView) -> Mapping[str, FloatArray]:
        return contributions(self.loaded.network, self._inputs(request, fleet), fleet.eligible)


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


EXPECTED = "expected completion"
"""The heuristic part of the score, and what the network makes of the same number."""
TOLL = "toll"
"""What training found this model to owe at this worker."""

GROUPS: dict[str, tuple[str, ...]] = {
    EXPECTED: ("excess",),
    "queue": ("backlog", "pending", "reported_pending"),
    "others' requests": ("pending_of_peers",),
    "service time": ("slowness", "service"),
    "batching": ("marginal",),
    "delay of others": ("externality", "externality_other_models"),
    "warm cache": ("saving", "cached"),
    "recent latency": ("latency",),
    "age of report": ("staleness",),
    "errors": ("error_rate",),
    "deadline": ("urgency",),
}
"""Inputs (features and terms of these names) by what people call them. Those that are the same for every worker (rows,
workers, load, mean_pending) change what the others do, and move no pick by themselves."""


def contributions(network: Network, given: Inputs, eligible: BoolArray) -> dict[str, FloatArray]:
    """What each group adds to each worker's score, `(..., n)`, in seconds of expected completion, more being better.

    It is the score less the score without the group: its inputs at their means over the eligible workers (occlusion;
    Zeiler and Fergus 2014). What groups do together is counted with each of them, so the numbers need not add up.
    """
    term = network.term(given.features, given.terms, eligible)
    found = {}
    for name, group in GROUPS.items():
        features = _without(given.features, [f.name in group for f in FEATURES], eligible)
        terms = _without(given.terms, [t.name in group for t in TERMS], eligible)
        added = term - network.term(features, terms, eligible)
        if name == EXPECTED:
            added = added - given.relative_cost + given.toll_s / given.best_s
        found[name] = added * given.best_s
    return found | {TOLL: -given.toll_s}


def _without(columns: FloatArray, which: list[bool], eligible: BoolArray) -> FloatArray:
    """The columns `(..., n, f)`, some of them at their means over the eligible workers."""
    count = np.maximum(np.count_nonzero(eligible, axis=-1), 1)[..., None, None]
    means = np.add.reduce(columns, axis=-2, keepdims=True, where=eligible[..., None]) / count
    return np.where(which, means, columns)
