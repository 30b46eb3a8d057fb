"""Decisions of whole episodes with what each of them cost: what PPO learns from.

The cost between two decisions is the increase of the integral of the number in the system, which over an episode is the
sum of latencies (Little), in units of the mean latency that `expected_latency` has in the same episode; and charges for
requests that ended late meanwhile. An episode runs until its last answer, so nothing is left to estimate at its end.

Control variate: beside it stands what `expected_latency` costs on the same arrivals and seeds between the same two
arrivals. That depends on no decision of ours, so subtracting it leaves the gradient's mean as it is, while bursts and
large requests, which both suffer, cancel. Source: Mao et al. 2019, Variance reduction for reinforcement learning in
input-driven environments, ICLR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policies.base import BoolArray, FloatArray, IntArray
from policies.expected_latency import ExpectedLatency
from policies.learned.features import Inputs
from policies.learned.network import Network
from simulator.batch import Batch
from simulator.result import Result
from simulator.train.arena import Arena, Draw, Task, arena, counted_latency_s
from simulator.train.settings import PpoSettings
from simulator.view import BatchView

FloatsArray = npt.NDArray[np.float32]

QUEUE = (
    "log1p(backlog_s / mean latency)",
    "log1p(pending * backlog_s / mean latency)",
    "log1p(service_s / mean latency)",
)
"""What the critic sees of each worker, beside the features; the mean latency is that of `expected_latency`."""

STATE = (
    "excess = number in the system - that of expected_latency at this arrival, as signed log1p",
    "excess / eligible workers / 5",
    "log1p of the number that expected_latency has",
    "log1p of the sum over workers of pending * backlog_s / mean latency",
    "that sum / eligible workers / 20, at most 20",
    "log1p of the sum of backlog_s / mean latency",
    "log1p of the largest backlog_s / mean latency",
)
"""What the critic sees of the fleet. The policy sees neither; the critic is not needed after training."""

_TAIL_SHARE = 0.05
"""Share of the requests of each model that are slow: those beyond the p95 of `expected_latency`."""
_LEAST_S = 1e-3
_MOST_COST = 20.0
"""Where the cost of one decision is cut off, in mean latencies, so that one fleet that broke down does not count."""
_MOST_ADVANTAGE = 4.0
_MOST_QUEUE = 50.0
_MOST_PENDING = 500.0


class CollectedDecisions(NamedTuple):
    """Row `t` is the `t`-th decision of each of `e` episodes; where an episode had fewer, `taken` is false."""

    features: FloatsArray
    """`(t, e, n, f)`; this and the next three as in `Inputs`."""
    terms: FloatsArray
    relative_cost: FloatsArray
    eligible: BoolArray
    queue: FloatsArray
    """`(t, e, n, q)`, see `QUEUE`."""
    state: FloatsArray
    """`(t, e, s)`, see `STATE`."""
    worker: IntArray
    """Who was picked, `(t, e)`."""
    log_probability: FloatArray
    taken: BoolArray
    passed: FloatArray
    """Time until the next decision, in mean latencies of `expected_latency`; 0 after the last; `(t, e)`."""
    cost: FloatArray
    """From this decision to the next, in mean latencies of `expected_latency`; `(t, e)`."""
    expected_cost: FloatArray
    """The control variate: of `expected_latency`, between the same arrivals."""


def collect(settings: PpoSettings, draw: Draw, network: Network, task: Task) -> CollectedDecisions:
    """Play the episodes of a task; equal arguments give equal decisions."""
    count, seed = task
    generator = np.random.default_rng(seed)
    here = arena(draw, count, settings.requests)
    episodes = [here.load(e, generator) for e in range(count)]
    expected = _expected(here)
    for e, episode in enumerate(episodes):  # to their start again
        here.batch.load(e, episode.scenario.fleet, episode.arrivals, episode.seed)
    mean_s = mean_latency_s(expected)
    seen, result = _play(here, network, mean_s)
    return _with_costs(seen, result, expected, mean_s, settings)


def joined(parts: Sequence[CollectedDecisions]) -> CollectedDecisions:
    """Side by side."""
    return CollectedDecisions(*(np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True)))


def _expected(here: Arena) -> Result:
    """What `expected_latency` makes of what is loaded."""
    policy, batch = ExpectedLatency(), here.batch
    batch.run_inside(policy, batch.draw(batch.probabilities(policy)))
    return batch.result()


def mean_latency_s(result: Result) -> FloatArray:
    """Of each episode, `(e,)`."""
    mean_s: FloatArray = np.maximum(counted_latency_s(result).mean(axis=1), _LEAST_S)
    return mean_s


class _SeenDecisions(NamedTuple):
    """Row `t` is the `t`-th decision of each episode; as many rows as there are requests."""

    request: IntArray
    at_s: FloatArray
    taken: BoolArray
    features: FloatsArray
    terms: FloatsArray
    relative_cost: FloatsArray
    eligible: BoolArray
    queue: FloatsArray
    probabilities: FloatArray


def _play(here: Arena, network: Network, mean_s: FloatArray) -> tuple[_SeenDecisions, Result]:
    """Route all that is loaded, and write down what was seen; `mean_s`: the unit of time of each episode, `(e,)`."""
    rows: list[_SeenDecisions] = []

    def see(batch: Batch, view: BatchView, given: Inputs, probabilities: FloatArray) -> None:
        eligible = view.eligible & batch.waiting[:, None]
        backlog = np.minimum(view.backlog_s / mean_s[:, None], _MOST_QUEUE)
        service = np.minimum(view.service_s / mean_s[:, None], _MOST_QUEUE)
        queue = np.stack([backlog, np.minimum(view.pending, _MOST_PENDING) * backlog, service], axis=-1)
        rows.append(
            _SeenDecisions(
                batch.deciding.copy(),
                np.array(batch.now_s),
                batch.waiting.copy(),
                given.features.astype(np.float32),
                given.terms.astype(np.float32),
                np.where(eligible, np.minimum(given.relative_cost, 1e30), 0.0).astype(np.float32),
                eligible,
                np.log1p(np.where(eligible[..., None], queue, 0.0)).astype(np.float32),
                probabilities.copy(),
            )
        )

    result = here.play(network, see)

    def column(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        found = np.zeros((here.requests, *values[0].shape), values[0].dtype)
        found[: len(values)] = values
        return found

    return _SeenDecisions(*map(column, zip(*rows, strict=True))), result


def _with_costs(
    seen: _SeenDecisions, result: Result, expected: Result, mean_s: FloatArray, settings: PpoSettings
) -> CollectedDecisions:
    """Add to what was seen what came of it."""
    cost, expected_cost, number, expected_number, passed = np.zeros((5, *seen.taken.shape))
    worker = np.zeros(seen.taken.shape, np.int64)
    for e in range(len(mean_s)):
        count = int(seen.taken[:, e].sum())
        chosen = seen.request[:count, e]
        worker[:count, e] = result.picked[e, chosen]
        passed[: count - 1, e] = np.diff(seen.at_s[:count, e]) / mean_s[e]
        limits = _limits(expected, e)
        cost[:count, e], number[:count, e] = _costs(result, e, chosen, mean_s[e], limits, settings)
        expected_cost[:count, e], expected_number[:count, e] = _costs(expected, e, chosen, mean_s[e], limits, settings)
    picked = np.take_along_axis(seen.probabilities, np.maximum(worker, 0)[..., None], axis=-1)[..., 0]
    return CollectedDecisions(
        seen.features,
        seen.terms,
        seen.relative_cost,
        seen.eligible,
        seen.queue,
        _state(seen, number - expected_number, expected_number),
        worker,
        np.log(np.where(seen.taken, picked, 1.0)),
        seen.taken,
        passed,
        cost,
        expected_cost,
    )


class _Limits(NamedTuple):
    """For each request of an episode, `(k,)`."""

    late_s: FloatArray
    """The p95 of `expected_latency` within the request's model."""
    slow_s: FloatArray
    """The mean latency of the requests beyond it."""


def _limits(expected: Result, e: int) -> _Limits:
    latency_s, model = counted_latency_s(expected)[e], expected.model[e]
    late_s, slow_s = np.ones_like(latency_s), np.ones_like(latency_s)
    for m in np.unique(model):
        its = np.sort(latency_s[model == m])
        slowest = max(int(len(its) * _TAIL_SHARE), 1)
        late_s[model == m], slow_s[model == m] = its[-slowest], its[-slowest:].mean()
    return _Limits(late_s, np.maximum(slow_s, _LEAST_S))


def _costs(
    result: Result, e: int, chosen: IntArray, mean_s: float, limits: _Limits, settings: PpoSettings
) -> tuple[FloatArray, FloatArray]:
    """Of one episode: the cost from each of the `chosen` requests' arrivals to the next, and the number in the system
    that each of them meets."""
    arrived_s, latency_s = result.arrival_s[e], counted_latency_s(result)[e]
    ended_s = arrived_s + latency_s
    missed = (latency_s > result.deadline_s[e]) | (result.status[e] != 0)
    # The derivative of log(conditional value at risk) by a latency, times the number of requests (pgpe.cost_of).
    slow = np.maximum(latency_s - limits.late_s, 0.0) / (_TAIL_SHARE * limits.slow_s)
    charges = settings.tail_weight * slow + settings.deadline_weight * missed
    end_s = float(ended_s.max())
    at_s = np.append(arrived_s[chosen], end_s)
    number, integral_s, charged = in_system(arrived_s, ended_s, charges, at_s)
    return np.diff(integral_s) / mean_s + np.diff(charged), number[:-1] - 1.0


def in_system(
    arrived_s: FloatArray, ended_s: FloatArray, charges: FloatArray, at_s: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """At each of the times: the number in the system, its integral until then, and the charges of those that ended.

    Requests are `(k,)`, in the order of their arrival.
    """
    order = np.argsort(ended_s, kind="stable")
    came = np.searchsorted(arrived_s, at_s, side="right")
    went = np.searchsorted(ended_s[order], at_s, side="right")

    def first(values: FloatArray) -> FloatArray:
        """Sum of the first 0, 1, 2 ... values."""
        return np.concatenate([[0.0], np.cumsum(values)])

    integral_s = (came * at_s - first(arrived_s)[came]) - (went * at_s - first(ended_s[order])[went])
    return (came - went).astype(np.float64), integral_s, first(charges[order])[went]


def _state(seen: _SeenDecisions, excess: FloatArray, expected_number: FloatArray) -> FloatsArray:
    """See `STATE`."""
    backlog, weight = np.expm1(seen.queue[..., 0]), np.expm1(seen.queue[..., 1]).sum(axis=-1)
    eligible = np.maximum(seen.eligible.sum(axis=-1), 1)
    columns: tuple[npt.NDArray[Any], ...] = (
        np.sign(excess) * np.log1p(np.abs(excess)),
        excess / eligible / 5,
        np.log1p(np.maximum(expected_number, 0.0)),
        np.log1p(weight),
        np.minimum(weight / eligible / 20, 20.0),
        np.log1p(backlog.sum(axis=-1)),
        np.log1p(backlog.max(axis=-1)),
    )
    return np.stack(columns, axis=-1).astype(np.float32)


def relative_cost(found: CollectedDecisions) -> FloatArray:
    """What each decision cost less the control variate, `(t, e)`, cut off."""
    return np.clip(found.cost - found.expected_cost, -_MOST_COST, _MOST_COST)


def normalised(advantage: FloatArray, taken: BoolArray) -> FloatArray:
    """Of equal spread in each episode, so that a noisy fleet does not drown the others; `(t, e)`."""
    count = np.maximum(taken.sum(axis=0), 1)
    spread = np.sqrt(np.where(taken, np.square(advantage), 0.0).sum(axis=0) / count)
    scaled = np.clip(advantage / (spread + 1e-3), -_MOST_ADVANTAGE, _MOST_ADVANTAGE)
    chosen = scaled[taken]
    return np.where(taken, (scaled - chosen.mean()) / max(float(chosen.std()), 1e-9), 0.0)
