"""Service times from what a decision log tells of the executions of each worker (`DecisionLog.service`).

What an agent reports of an execution is Triton's compute time, from its start to its end: where several may be under
way on one device, waiting for the device is in it: `executed` finds what they took without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from balancer.kernel.estimators.service import ROW_SHARE
from balancer.server.decision_log.lines import COLUMNS
from balancer.server.decision_log.recorded import DecisionLog, RecordedService
from simulator.service import fit
from simulator.spec import ServiceTime

_LEAST_SHARE = 0.1
"""What one row takes at least, of the time of the smallest batch that was seen."""
_LINE_VARIANCE = 0.25
"""Weight, in rows squared of variance, of the share of rows assumed."""


@dataclass(slots=True)
class Executions:
    max_batch_rows: int = 1
    instances: int = 1
    batches: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(executions for executions, _ in self.batches.values())

    @property
    def rows(self) -> int:
        return sum(rows * executions for rows, (executions, _) in self.batches.items())

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.batches.values())

    def add(self, rows: int, executions: int, seconds: float) -> None:
        executions_before, seconds_before = self.batches.get(rows, (0, 0.0))
        self.batches[rows] = executions_before + executions, seconds_before + seconds


@dataclass(slots=True)
class WorkerExecutions:
    windows: list[tuple[float, float]] = field(default_factory=list)
    """From when to when, since 1970, of each life that was recorded more than once."""
    balancers: int = 1
    models: dict[str, Executions] = field(default_factory=dict)
    """Those that it has, executed or not."""


def worked(log: DecisionLog) -> dict[str, WorkerExecutions]:
    """By worker, the growth of its counters from the first to the last time they were recorded, restarts included.

    Counters that were recorded once are taken as they are: then the first executions, which are slow, are in them.
    """
    lives: defaultdict[str, defaultdict[int, list[RecordedService]]] = defaultdict(lambda: defaultdict(list))
    for record in log.service:
        lives[record.worker][record.incarnation].append(record)
    return {worker: _sum_of(log, list(own.values())) for worker, own in lives.items()}


def _sum_of(log: DecisionLog, lives: Iterable[list[RecordedService]]) -> WorkerExecutions:
    found = WorkerExecutions()
    # Of several processes each may have recorded the same worker; what is earlier is what has executed less.
    ordered = [sorted(records, key=_executed) for records in lives]
    lasting = [records for records in ordered if _executed(records[-1]) > _executed(records[0])]
    for records in lasting or ordered:
        first, last = records[0], records[-1]
        before = {one.model: {b[0]: b for b in one.batches} for one in first.models} if lasting else {}
        if lasting:
            found.windows.append((log.unix_s(first.run, first.at_s), log.unix_s(last.run, last.at_s)))
        found.balancers = max(found.balancers, last.balancers)
        for model in last.models:
            own = found.models.setdefault(model.model, Executions())
            own.max_batch_rows = max(own.max_batch_rows, model.max_batch_rows)
            own.instances = max(own.instances, model.instances)
            for rows, executions, seconds in model.batches:
                _, executions_then, seconds_then = before.get(model.model, {}).get(rows, (rows, 0, 0.0))
                if executions > executions_then:
                    own.add(rows, executions - executions_then, seconds - seconds_then)
    return found


def _executed(record: RecordedService) -> int:
    return sum(executions for model in record.models for _, executions, _ in model.batches)


def estimated(log: DecisionLog, largest: Mapping[str, int]) -> dict[str, dict[str, Executions]]:
    """By worker and model, what balancers took the service time of each size to be, as one execution of that size.

    Medians over the last half of the decisions. They err on the short side where executions vary
    (`balancer.kernel.estimators.service`), and for a worker that never executed the model they are what was assumed.

    Args:
        log: From `read_log`.
        largest: By model, the largest batch.
    """
    row = COLUMNS.index("service_s")
    seen: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for decision in log.decisions[len(log) // 2 :]:
        rows = round(float(np.max(decision.request.rows)))
        if 1 <= rows <= largest.get(decision.request.model, 0):
            for name, seconds in zip(decision.workers.names, decision.columns[row], strict=True):
                seen[name, decision.request.model, rows].append(float(seconds))
    found: defaultdict[str, dict[str, Executions]] = defaultdict(dict)
    for (name, model, rows), seconds_seen in seen.items():
        own = found[name].setdefault(model, Executions(largest[model]))
        own.batches[rows] = 1, float(np.median(seconds_seen))
    return dict(found)


def pooled(parts: Iterable[Executions]) -> Executions:
    found = Executions()
    for part in parts:
        found.max_batch_rows = max(found.max_batch_rows, part.max_batch_rows)
        found.instances = max(found.instances, part.instances)
        for rows, (executions, seconds) in part.batches.items():
            found.add(rows, executions, seconds)
    return found


def service_time(executions: Executions) -> ServiceTime:
    """Isotonic through the means of the sizes seen (`service.fit`); a straight line to 1 row and to the largest batch.

    The less the sizes differ that were seen, the more the line has the share of rows that the estimator assumes, as
    there (`balancer.kernel.estimators.service.fit`).
    """
    sizes = sorted(executions.batches)
    count = np.array([executions.batches[rows][0] for rows in sizes], np.float64)
    mean_s = np.array([executions.batches[rows][1] for rows in sizes]) / count
    known = fit(sizes, mean_s.tolist(), count.tolist())
    rows = np.array(sizes, np.float64)
    centre, centre_s = np.average(rows, weights=count), np.average(mean_s, weights=count)
    spread = float(np.average((rows - centre) ** 2, weights=count))
    together = float(np.average((rows - centre) * (mean_s - centre_s), weights=count))
    assumed = float(ROW_SHARE * centre_s / centre)
    slope = min(max((together + _LINE_VARIANCE * assumed) / (spread + _LINE_VARIANCE), 0.0), float(centre_s / centre))
    points = dict(zip(known.rows, known.device_s, strict=True))
    first, last = known.rows[0], known.rows[-1]
    if first > 1:
        points[1] = max(points[first] - slope * (first - 1), _LEAST_SHARE * points[first])
    if last < executions.max_batch_rows:
        points[executions.max_batch_rows] = points[last] + slope * (executions.max_batch_rows - last)
    ordered = sorted(points.items())
    return ServiceTime(tuple(size for size, _ in ordered), tuple(seconds for _, seconds in ordered))


def speed(own: Mapping[str, Executions], of_kind: Mapping[str, ServiceTime]) -> float:
    """How much faster a worker is than its device kind, by what it executed; 1 where it executed nothing."""
    expected_s = actual_s = 0.0
    for model, executions in own.items():
        table = of_kind[model]
        for rows, (count, seconds) in executions.batches.items():
            expected_s += count * float(np.interp(rows, table.rows, table.device_s))
            actual_s += seconds
    return expected_s / actual_s if actual_s > 0 and expected_s > 0 else 1.0
