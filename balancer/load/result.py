"""What came back: one record a request, as columns, and what they amount to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.load.arrivals import FloatArray
from balancer.load.statistics import quantiles
from balancer.load.workload import IntArray

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
