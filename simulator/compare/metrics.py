"""What a run amounts to: latencies, deadlines, failures and load, for each environment of its own."""

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from policies.base import BoolArray, FloatArray, IntArray
from simulator.result import Result, Status

WARM_UP_SHARE = 0.1
"""Share of the requests, the first ones, that fill the empty fleet and are not counted."""

TAIL_SHARES: FloatArray = np.logspace(0.0, -3.0, 61)
"""Of `RunMetrics.tail_s`: shares of the requests that are slower."""


@dataclass(frozen=True, slots=True, eq=False)
class LatencyMetric:
    """Latencies of the requests that were answered well, in seconds; `(e,)` each, NaN where there was none."""

    requests: IntArray
    """Counted requests, whatever became of them."""
    mean_s: FloatArray
    p50_s: FloatArray
    p95_s: FloatArray
    p99_s: FloatArray
    p999_s: FloatArray
    within_deadline: FloatArray
    """Share of all requests with a deadline that were answered well within it; NaN where none has one."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptMetric:
    """Shares of the tokens of all prompts that a worker began with; `(e,)` each, NaN where there was none."""

    cached: FloatArray
    """That the worker had."""
    missed: FloatArray
    """That it had, beyond what its balancer took it to have."""
    false: FloatArray
    """That its balancer took it to have, beyond what it had."""


@dataclass(frozen=True, slots=True, eq=False)
class RunMetrics:
    """A run after its warm-up; `(e,)` unless said otherwise."""

    latency: LatencyMetric
    models: dict[str, LatencyMetric]
    first_mean_s: FloatArray
    """Arrival to the first response, of streams that were answered well; NaN where there are none."""
    first_p99_s: FloatArray
    prompts: PromptMetric
    tail_s: FloatArray
    """Latency that a share `TAIL_SHARES` of the answered requests exceeds; `(e, len(TAIL_SHARES))`."""
    shares: dict[str, FloatArray]
    """Share of the requests that ended so, by the name of the `Status` in lower case."""
    goodput_per_s: FloatArray
    """Requests answered well, and within their deadline where they have one, by second from the end of the warm-up to
    the end of the run."""
    throughput_per_s: FloatArray
    """Requests answered well, by second of the same time."""
    busy_share: FloatArray
    """Share of the whole run in which each device executed something; `(e, n)`."""
    worker_requests: IntArray
    """Requests that each worker answered; `(e, n)`."""
    fairness: FloatArray
    """Jain's index over `busy_share`: 1 where all devices are equally busy, 1/n where one does everything."""


def environments(result: Result, chosen: slice) -> Result:
    shared = ("timeline_s", "workers", "models")
    parts = {field.name: getattr(result, field.name)[chosen] for field in fields(result) if field.name not in shared}
    return replace(result, **parts)


def measure(result: Result, warm_up_share: float = WARM_UP_SHARE) -> RunMetrics:
    """Reduce a run, the first `warm_up_share` of each environment's requests left out.

    Raises:
        ValueError: the share is outside [0, 1), or leaves no request.
    """
    if not 0.0 <= warm_up_share < 1.0:
        raise ValueError(f"warm_up_share is {warm_up_share}, must be at least 0 and below 1")
    if result.status.shape[1] == 0:
        raise ValueError("result has no requests: simulate at least one")
    first = int(result.status.shape[1] * warm_up_share)
    status, latency_s = result.status[:, first:], result.latency_s[:, first:]
    deadline_s, model = result.deadline_s[:, first:], result.model[:, first:]
    ok = status == Status.OK
    in_time = ok & (latency_s <= deadline_s)
    measured_s = np.maximum(result.end_s - result.arrival_s[:, first], np.finfo(float).tiny)
    everything = np.ones_like(ok)
    busy_share = result.busy_s / np.maximum(result.end_s, np.finfo(float).tiny)[:, None]
    first_s = result.first_s[:, first:]
    streams = ok & np.isfinite(first_s)
    return RunMetrics(
        latency=_latency(latency_s, deadline_s, ok, everything),
        models={name: _latency(latency_s, deadline_s, ok, model == i) for i, name in enumerate(result.models)},
        first_mean_s=_divide(np.where(streams, first_s, 0.0).sum(axis=1), streams.sum(axis=1)),
        first_p99_s=_quantiles(first_s, streams, np.array([0.99]))[:, 0],
        prompts=_prompts(result, first),
        tail_s=_quantiles(latency_s, ok, 1.0 - TAIL_SHARES),
        shares={each.name.lower(): np.mean(status == each, axis=1) for each in Status},
        goodput_per_s=in_time.sum(axis=1) / measured_s,
        throughput_per_s=ok.sum(axis=1) / measured_s,
        busy_share=busy_share,
        worker_requests=_by_worker(result.worker[:, first:], ok, len(result.workers)),
        fairness=jain(busy_share),
    )


def _prompts(result: Result, first: int) -> PromptMetric:
    columns = result.prompt_tokens, result.cached_tokens, result.matched_tokens
    tokens, cached, matched = (column[:, first:] for column in columns)
    begun = np.isfinite(cached)
    all_tokens = np.where(begun, tokens, 0.0).sum(axis=1)

    def share(of: FloatArray) -> FloatArray:
        return _divide(np.where(begun, of, 0.0).sum(axis=1), all_tokens)

    beyond = cached - matched
    return PromptMetric(share(cached), share(np.maximum(beyond, 0.0)), share(np.maximum(-beyond, 0.0)))


def jain(load: FloatArray) -> FloatArray:
    """Jain's fairness index over the last axis, `(..., n)` to `(...)`; NaN where all is 0.

    Source: Jain, Chiu, Hawe 1984, A quantitative measure of fairness and discrimination, DEC TR-301.
    """
    squares = np.square(load).sum(axis=-1) * load.shape[-1]
    return _divide(np.square(load.sum(axis=-1)), squares)


def _latency(latency_s: FloatArray, deadline_s: FloatArray, ok: BoolArray, counted: BoolArray) -> LatencyMetric:
    answered = ok & counted
    due = counted & np.isfinite(deadline_s)
    p50_s, p95_s, p99_s, p999_s = _quantiles(latency_s, answered, np.array([0.5, 0.95, 0.99, 0.999])).T
    return LatencyMetric(
        requests=counted.sum(axis=1),
        mean_s=_divide(np.where(answered, latency_s, 0.0).sum(axis=1), answered.sum(axis=1)),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        p999_s=p999_s,
        within_deadline=_divide((due & answered & (latency_s <= deadline_s)).sum(axis=1), due.sum(axis=1)),
    )


def _quantiles(values: FloatArray, chosen: BoolArray, levels: FloatArray) -> FloatArray:
    """Quantiles of the chosen values of each row, `(e, k)` to `(e, len(levels))`; NaN where none is chosen."""
    found = np.full((len(values), len(levels)), np.nan)
    for row, own in enumerate(chosen):
        if own.any():
            found[row] = np.quantile(values[row, own], levels)
    return found


def _by_worker(worker: npt.NDArray[np.int16], ok: BoolArray, workers: int) -> IntArray:
    environments = len(worker)
    row = np.broadcast_to(np.arange(environments)[:, None], worker.shape)
    flat = (row * workers + worker)[ok & (worker >= 0)]
    return np.bincount(flat, minlength=environments * workers).reshape(environments, workers)


def _divide(above: FloatArray | IntArray, below: FloatArray | IntArray) -> FloatArray:
    quotient: FloatArray = np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
    return quotient


def counted_s(result: Result) -> list[FloatArray]:
    """What a run is judged by, `(e, k)` each: latencies as they are charged, and where models generate, the seconds
    until their first tokens; NaN of other models. A mean or a tail is the geometric mean of both."""
    latency_s, generates = counted_latency_s(result), np.isfinite(result.prompt_tokens)
    if not generates.any():
        return [latency_s]
    return [latency_s, np.where(generates, np.where(result.status == 0, result.first_s, latency_s), np.nan)]


def counted_latency_s(result: Result) -> FloatArray:
    """Latencies `(e, k)` as they are charged: failed requests as at least a second, those never answered as 20 s."""
    latency_s = np.where(np.isnan(result.latency_s), 20.0, result.latency_s)
    return np.where(result.status != 0, np.maximum(latency_s, 1.0), latency_s)
