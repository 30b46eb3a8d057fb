"""Policies as third parties write them, in NumPy."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request, least, option, uniform_over
from policies.choices import softmin_of
from policies.costs import CostPolicy, quantile_of, total_of


@dataclasses.dataclass(frozen=True)
class Stranger(Policy):
    """Not one of the balancer's; what differs is the function."""

    name: ClassVar[str] = "stranger"
    summary: ClassVar[str] = "For tests."
    source: ClassVar[str] = "The tests"


@dataclasses.dataclass(frozen=True)
class Softmax(Stranger):
    """Of what a request would wait, and of errors, with a share for whoever is new."""

    scale_s: float = option(0.02, "Seconds that make a share fall by e", gt=0.0)

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        cost = (fleet.completion_s + 0.1 * fleet.error_rate * request.rows) / self.scale_s
        cost = np.where(fleet.eligible, np.minimum(cost, 1e6), np.inf)
        shares = np.exp(cost.min(axis=-1, keepdims=True) - np.where(fleet.eligible, cost, 1e6))
        shares *= fleet.eligible * (1.0 + (fleet.latency_s == 0.0))
        total = np.sum(shares, axis=-1, keepdims=True)
        shares /= np.where(total > 0, total, 1.0)
        return shares


@dataclasses.dataclass(frozen=True)
class Costs(CostPolicy):
    """A cost and a choice, with facts, a draw, and what the request has."""

    name: ClassVar[str] = "costs"
    summary: ClassVar[str] = "For tests."
    source: ClassVar[str] = "The tests"
    temperature: float = option(0.2, "Of the softmin", ge=0.0)
    quantile: float = option(0.9, "Of pending that is too much", ge=0.0, le=1.0)

    choice = softmin_of("temperature")
    facts: ClassVar = {"much": quantile_of("pending", "quantile"), "there": total_of("weight")}

    @staticmethod
    def cost(pending: Any, weight: Any, there: Any, draw: Any, rows: Any, keyed: Any) -> Any:
        return (pending + rows) * there / weight + keyed * draw

    @staticmethod
    def candidate(pending: Any, much: Any) -> Any:
        return pending <= much


def _branches(request: Request, fleet: FleetView) -> FloatArray:
    if not fleet.eligible.any():
        return np.zeros_like(fleet.pending)
    most = max(fleet.pending.max(), 1.0)
    if request.rows > 16:
        return least(fleet.completion_s, fleet.eligible)
    return least(np.floor(fleet.pending / most * 4), fleet.eligible)


def _one_axis(request: Request, fleet: FleetView) -> FloatArray:
    assert fleet.pending.ndim == 1
    out = np.zeros_like(fleet.pending)
    out[np.argmin(np.where(fleet.eligible, fleet.pending, np.inf))] = 1.0
    return out


def _in_batches(request: Request, fleet: FleetView) -> FloatArray:
    best = np.argmax(np.where(fleet.eligible, fleet.tokens, -np.inf), axis=-1)[..., None]
    out = np.zeros(fleet.tokens.shape)
    return np.where(np.arange(fleet.tokens.shape[-1]) == best, 1.0, out)


def _in_turn(request: Request, fleet: FleetView) -> FloatArray:
    turn = request.number % np.maximum(np.count_nonzero(fleet.eligible, axis=-1, keepdims=True), 1)
    before = np.cumsum(fleet.eligible, axis=-1) - fleet.eligible
    return (fleet.eligible & (before == turn)).astype(float)


def _by_rank(request: Request, fleet: FleetView) -> FloatArray:
    cost = np.where(fleet.eligible, fleet.in_flight, np.inf)
    rank = np.argsort(np.argsort(cost, axis=-1, kind="stable"), axis=-1, kind="stable")
    return uniform_over(fleet.eligible & (rank < np.maximum(fleet.eligible.sum(-1, keepdims=True) // 2, 1)))


def _with_workers(request: Request, fleet: FleetView) -> FloatArray:
    room = np.clip(fleet.weight / fleet.weight.shape[-1], 0.01, 4.0) ** 2
    return np.where(fleet.eligible, room, 0) / np.sum(room, axis=-1, keepdims=True, where=fleet.eligible)


def _by_threshold(request: Request, fleet: FleetView) -> FloatArray:
    usual = np.mean(fleet.pending, axis=-1, keepdims=True) + 0.1 * np.std(fleet.pending, axis=-1, keepdims=True)
    good = fleet.eligible & ~(fleet.pending > usual)
    found = np.any(good, axis=-1, keepdims=True)
    return uniform_over(np.where(found, good, fleet.eligible))


FIT: dict[str, Callable[[Request, FleetView], Any]] = {
    each.__name__: each
    for each in (_branches, _one_axis, _in_batches, _in_turn, _by_rank, _with_workers, _by_threshold)
}
"""What fits a program."""


def _loops(request: Request, fleet: FleetView) -> FloatArray:
    out = np.zeros(len(fleet.pending))
    for w in range(len(out)):
        out[w] = fleet.eligible[w] * (1 + w % 2)
    return out / out.sum()


def _some(request: Request, fleet: FleetView) -> FloatArray:
    out = np.zeros_like(fleet.pending)
    out[fleet.eligible] = 1.0 / len(fleet.pending[fleet.eligible])
    return out


def _branch_of_workers(request: Request, fleet: FleetView) -> FloatArray:
    return uniform_over(fleet.eligible) if fleet.pending else least(fleet.pending, fleet.eligible)


def _while(request: Request, fleet: FleetView) -> FloatArray:
    cost = fleet.pending.sum()
    while cost > 1.0:
        cost = cost / 2.0
    return uniform_over(fleet.eligible) * (1.0 + 0.0 * cost)


def _by_model(request: Request, fleet: FleetView) -> FloatArray:
    return uniform_over(fleet.eligible & (fleet.in_flight >= len(request.model)))


def _by_clock(request: Request, fleet: FleetView) -> FloatArray:
    return uniform_over(fleet.eligible) * (time.monotonic() > 0)


def _by_chance(request: Request, fleet: FleetView) -> FloatArray:
    return least(np.random.default_rng().random(fleet.eligible.shape), fleet.eligible)


def _raises(request: Request, fleet: FleetView) -> FloatArray:
    raise RuntimeError("no licence")


def _writes(request: Request, fleet: FleetView) -> FloatArray:
    fleet.pending[...] = 0.0
    return uniform_over(fleet.eligible)


def _heavy(request: Request, fleet: FleetView) -> FloatArray:
    return uniform_over(fleet.eligible) * 2.0


def _by_size(request: Request, fleet: FleetView) -> FloatArray:
    return uniform_over(fleet.eligible) if fleet.pending.size > 7 else least(fleet.pending, fleet.eligible)


def _another_shape(request: Request, fleet: FleetView) -> FloatArray:
    return fleet.eligible.sum(axis=-1, keepdims=True) * 0.0


def _median(request: Request, fleet: FleetView) -> FloatArray:
    return uniform_over(fleet.eligible & (fleet.pending <= np.median(fleet.pending, axis=-1, keepdims=True)))


DOES_NOT_FIT: dict[Callable[[Request, FleetView], Any], str] = {
    _loops: "int, float, len, a loop",
    _some: "some of the workers",
    _branch_of_workers: "asks an array of workers for its truth",
    _while: "branches",
    _by_model: "reads the request's model",
    _by_clock: "calls time.monotonic",
    _by_chance: "array of numbers of its own",
    _raises: "RuntimeError: no licence",
    _writes: "writes to a column",
    _heavy: "no distribution",
    _by_size: "another one than that of its operations",
    _another_shape: "answers (",
    _median: "calls numpy.median",
}
"""What does not, and a part of the reason."""


LOOPS = _loops


def stranger(function: Callable[[Request, FleetView], Any]) -> Policy:
    """A policy that answers by this function."""
    made: type[Policy] = dataclasses.dataclass(frozen=True)(
        type("Made", (Stranger,), {"probabilities": lambda _, request, fleet: function(request, fleet)})
    )
    return made()
