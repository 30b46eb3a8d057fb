"""What came back: one record a request, as columns, and what they amount to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.load.arrivals import FloatArray
from balancer.load.workload import IntArray


def quantiles(values: FloatArray, levels: Sequence[float]) -> list[float]:
    """Quantiles by linear interpolation (type 7 of Hyndman and Fan, 1996); NaN each where there is no value."""
    if not len(values):
        return [float("nan")] * len(levels)
    return [float(value) for value in np.quantile(values, levels)]


def quantile_interval(
    values: FloatArray, block: IntArray, level: float, *, confidence: float = 0.95, resamples: int = 200, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of a quantile, from a bootstrap of whole blocks; NaN twice with fewer than two blocks.

    `block` names each value's block (a second of one window, say), shape `(n,)` as `values`: a queue makes latencies
    close in time alike, so resampling single requests would claim far too much. Source: Kunsch, "The jackknife and
    the bootstrap for general stationary observations", Annals of Statistics 17, 1989.
    """
    if len(np.unique(block)) < 2:
        return float("nan"), float("nan")
    estimates = _resampled([(values, block)], level, resamples, seed)[:, 0]
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def ranks(
    samples: Sequence[tuple[FloatArray, IntArray]],
    level: float,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[int]:
    """A rank for each sample: 1, and one more for each other sample whose quantile is lower beyond chance. Samples of
    one rank cannot be told apart.

    A sample is values above 0 and their blocks, as `quantile_interval` has them; the blocks of all samples are the same
    stretches of time. Each resample draws the same blocks for all, so that a burst that all met parts nobody. The
    confidence is that of all pairs together: a pair is told apart where the difference of its logarithms exceeds the
    quantile of the largest studentized deviation of any pair (single-step max T). Source: Westfall and Young,
    "Resampling-based multiple testing", Wiley 1993.
    """
    if len(samples) < 2 or len(np.unique(np.concatenate([block for _, block in samples]))) < 2:
        return [1] * len(samples)
    point = np.log([np.quantile(values, level) for values, _ in samples])
    resampled = np.log(_resampled(samples, level, resamples, seed))
    apart = point[:, None] - point
    deviation = resampled[:, :, None] - resampled[:, None, :] - apart
    error = np.sqrt(np.mean(np.square(deviation), axis=0))
    largest = np.divide(np.abs(deviation), error, out=np.zeros_like(deviation), where=error > 0).max(axis=(1, 2))
    slower = apart > np.quantile(largest, confidence) * error
    # What is slower than a slower one is slower: it follows, also where its own difference is too uncertain to say so.
    for middle in range(len(samples)):
        slower |= slower[:, middle, None] & slower[middle]
    return [1 + int(count) for count in slower.sum(axis=1)]


def _resampled(samples: Sequence[tuple[FloatArray, IntArray]], level: float, resamples: int, seed: int) -> FloatArray:
    """The quantile of each sample in each resample of the blocks, `(resamples, len(samples))`."""
    names = np.unique(np.concatenate([block for _, block in samples]))
    groups = []
    for values, block in samples:
        place = np.searchsorted(names, block)
        counts = np.bincount(place, minlength=len(names))
        groups.append(np.split(values[np.argsort(place, kind="stable")], np.cumsum(counts)[:-1]))
    generator = np.random.default_rng(seed)
    estimates = np.empty((resamples, len(samples)))
    for resample in range(resamples):
        drawn = generator.integers(len(names), size=len(names))
        for sample, group in enumerate(groups):
            (estimates[resample, sample],) = quantiles(np.concatenate([group[i] for i in drawn]), [level])
    return estimates


BoolArray = npt.NDArray[np.bool_]

OK = "OK"
"""The code of a request that succeeded; others are gRPC status names, `HTTP 503` and the like, or a failure's name."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """One record a request, in order of its scheduled start: columns of shape `(n,)`, times from the run's start."""

    models: tuple[str, ...]
    codes: tuple[str, ...]
    workers: tuple[str, ...]
    duration_s: float
    """Length of the window: of a whole run, until its last answer."""
    scheduled_s: FloatArray
    started_s: FloatArray
    """When the request was handed to the client library: later than scheduled where this generator was behind."""
    latency_s: FloatArray
    """From the *scheduled* start to the answer, so that waiting for a slow generator or server is counted."""
    deadline_s: FloatArray
    rows: IntArray
    model: IntArray
    code: IntArray
    worker: IntArray
    """-1 where the answer did not tell."""

    def __len__(self) -> int:
        return len(self.scheduled_s)

    @property
    def ok(self) -> BoolArray:
        if OK not in self.codes:
            return np.zeros(len(self), dtype=np.bool_)
        chosen: BoolArray = self.code == self.codes.index(OK)
        return chosen

    @property
    def lateness_s(self) -> FloatArray:
        return self.started_s - self.scheduled_s

    def where(self, chosen: BoolArray, duration_s: float | None = None) -> LoadResult:
        """The chosen records, of a window that is as long as this one if not said otherwise."""
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return dataclasses.replace(self, duration_s=self.duration_s if duration_s is None else duration_s, **columns)

    def between(self, start_s: float, end_s: float) -> LoadResult:
        """The requests scheduled in [start_s, end_s): a phase of the run."""
        return self.where((self.scheduled_s >= start_s) & (self.scheduled_s < end_s), end_s - start_s)


_COLUMNS = ("scheduled_s", "started_s", "latency_s", "deadline_s", "rows", "model", "code", "worker")


def joined(results: Sequence[LoadResult]) -> LoadResult:
    """All records of several results of the same models, as if of one window as long as all; raises `ValueError`."""
    if not results or len({result.models for result in results}) != 1:
        raise ValueError("only results of the same models can be joined, and at least one: drive one mix")
    codes = tuple(dict.fromkeys(name for result in results for name in result.codes))
    workers = tuple(dict.fromkeys(name for result in results for name in result.workers))
    columns = {name: np.concatenate([getattr(result, name) for result in results]) for name in _COLUMNS}
    columns["code"] = np.concatenate([_renamed(result.code, result.codes, codes) for result in results])
    columns["worker"] = np.concatenate([_renamed(result.worker, result.workers, workers) for result in results])
    duration_s = sum(result.duration_s for result in results)
    return LoadResult(results[0].models, codes, workers, duration_s, **columns)


def _renamed(index: IntArray, old: tuple[str, ...], new: tuple[str, ...]) -> IntArray:
    # The last entry is what index -1 (no name) finds.
    return np.array([new.index(name) for name in old] + [-1], dtype=np.int64)[index]


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What the records amount to. Latencies are of successful requests, from the scheduled start, in seconds."""

    requests: int
    ok: int
    errors: dict[str, int]
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    p999_s: float
    within_deadline: float
    """Share of the requests with a deadline that succeeded within it; NaN where none has one."""
    achieved_per_s: float
    """Successful requests over the length of the window."""
    late_p50_s: float
    late_p99_s: float
    """Lateness of the generator itself: where it nears the latencies, the client was the bottleneck."""
    by_worker: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in fields.items()
        }


def summarise(result: LoadResult) -> Summary:
    ok = result.ok
    latency_s = result.latency_s[ok]
    p50_s, p95_s, p99_s, p999_s = quantiles(latency_s, (0.5, 0.95, 0.99, 0.999))
    late_p50_s, late_p99_s = quantiles(result.lateness_s, (0.5, 0.99))
    due = np.isfinite(result.deadline_s)
    in_time = due & ok & (result.latency_s <= result.deadline_s)
    codes = np.bincount(result.code, minlength=len(result.codes))
    workers = np.bincount(result.worker[result.worker >= 0], minlength=len(result.workers))
    return Summary(
        requests=len(result),
        ok=int(ok.sum()),
        errors={name: int(codes[i]) for i, name in enumerate(result.codes) if name != OK and codes[i]},
        mean_s=float(latency_s.mean()) if len(latency_s) else math.nan,
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        p999_s=p999_s,
        within_deadline=float(in_time.sum() / due.sum()) if due.any() else math.nan,
        achieved_per_s=float(ok.sum() / result.duration_s) if result.duration_s > 0 else math.nan,
        late_p50_s=late_p50_s,
        late_p99_s=late_p99_s,
        by_worker={name: int(workers[i]) for i, name in sorted(enumerate(result.workers), key=lambda pair: pair[1])},
    )


def by_model(result: LoadResult) -> dict[str, LoadResult]:
    parts = {name: result.where(result.model == i) for i, name in enumerate(result.models)}
    return {name: part for name, part in parts.items() if len(part)}


def by_worker(result: LoadResult) -> dict[str, LoadResult]:
    parts = {name: result.where(result.worker == i) for i, name in enumerate(result.workers)}
    return {name: part for name, part in sorted(parts.items()) if len(part)}


def milliseconds(seconds: float) -> str:
    """Three significant digits, thousands apart, `-` for what is not a number."""
    if not math.isfinite(seconds):
        return "-"
    value = seconds * 1e3
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def share(value: float) -> str:
    """Percent with one decimal, `-` for what is not a number."""
    return f"{value:.1%}" if math.isfinite(value) else "-"
