"""A simulated fleet whose workers an autoscaler adds and takes away.

The engine is told beforehand when workers join and leave. So a run is made with what was decided so far; at the first
look that changes something, another is made with that too. The past is the same in both: a run depends on nothing that
comes later.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from dev.experiments.autoscaling.hpa import SYNC_S, Autoscaler
from policies import Policy
from policies.base import FloatArray
from simulator.arrivals import Arrivals
from simulator.result import Result, Status
from simulator.run import run
from simulator.spec import Fault, FleetSpec

_AHEAD_S = 600.0
"""A run goes so far beyond the look that it is made for."""


@dataclass(frozen=True, slots=True)
class Targets:
    backlog_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Scraped:
    """The metrics as they were, over time; NaN: none."""

    time_s: FloatArray
    backlog_s: FloatArray
    p99_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    targets: Targets
    result: Result
    scraped: Scraped
    look_s: FloatArray
    replicas: FloatArray
    ready: FloatArray


@dataclass(frozen=True, slots=True)
class Setup:
    fleet: FleetSpec
    """With the workers of the start; more are made like the first."""
    arrivals: Arrivals
    policy: Callable[[], Policy]
    load_s: float
    """From a pod's start until it is ready."""
    scrape_s: float
    window_s: float
    """Of the rate that p99 is computed from."""
    bounds_s: tuple[float, ...]
    most_workers: int = 64
    """That ever join: a pod that comes back is another."""


@dataclass(slots=True)
class _Pod:
    worker: str
    requested_s: float
    ready_s: float
    left_s: float = np.inf


class _Fleet:
    def __init__(self, setup: Setup) -> None:
        first = setup.fleet.workers
        more = setup.most_workers - len(first)
        self._load_s = setup.load_s
        self._spares = [replace(first[0], name=f"later-{number}", present=False) for number in range(more)]
        self._spec = replace(setup.fleet, workers=(*first, *self._spares))
        self.pods = [_Pod(worker.name, 0.0, 0.0) for worker in first]
        """The newest last: a StatefulSet takes that away first."""

    @property
    def there(self) -> list[_Pod]:
        return [pod for pod in self.pods if pod.left_s == np.inf]

    def ready(self, at_s: float) -> list[str]:
        return [pod.worker for pod in self.pods if pod.ready_s <= at_s < pod.left_s]

    def scale(self, now_s: float, replicas: int) -> None:
        """To so many, from now on. RuntimeError where there are no more workers to join."""
        there = self.there
        for pod in there[replicas:]:
            pod.left_s = now_s
        for _ in range(replicas - len(there)):
            used = len(self.pods) - (len(self._spec.workers) - len(self._spares))
            if used == len(self._spares):
                raise RuntimeError(
                    f"more than {len(self._spec.workers)} workers came and went; set most_workers higher"
                )
            self.pods.append(_Pod(self._spares[used].name, now_s, now_s + self._load_s))

    def spec(self) -> FleetSpec:
        joined = (pod for pod in self.pods if pod.ready_s > 0)
        joins = [Fault("join", pod.worker, pod.requested_s, self._load_s) for pod in joined]
        # One that is taken away before it was ready leaves once it is: the engine's workers load to the end.
        leaves = [Fault("leave", pod.worker, max(pod.left_s, pod.ready_s)) for pod in self.pods if pod.left_s < np.inf]
        return replace(self._spec, faults=(*joins, *leaves))


def closed_loop(setup: Setup, autoscaler: Autoscaler, targets: Targets) -> Run:
    fleet = _Fleet(setup)
    until_s = _AHEAD_S
    result = _run(setup, fleet, until_s)
    looks_s = np.arange(SYNC_S, float(setup.arrivals.time_s[-1]), SYNC_S)
    seen: list[tuple[float, float, float]] = []
    counts: list[tuple[int, int]] = []
    for now_s in looks_s.tolist():
        if now_s > until_s:
            until_s = now_s + _AHEAD_S
            result = _run(setup, fleet, until_s)
        # Between two scrapes, the older counts.
        scraped_s = np.floor(now_s / setup.scrape_s) * setup.scrape_s
        backlog_s, p99_s = _backlog_s(setup, fleet, result, scraped_s), _p99_s(setup, result, scraped_s)
        seen.append((scraped_s, backlog_s, p99_s))
        replicas, ready = len(fleet.there), len(fleet.ready(now_s))
        ratios = [
            None if np.isnan(value) else value / target
            for value, target in ((backlog_s, targets.backlog_s), (p99_s, targets.p99_s))
        ]
        wanted = autoscaler.look(now_s, replicas, ready, ratios)
        counts.append((wanted, ready))
        if wanted != replicas:
            fleet.scale(now_s, wanted)
            until_s = now_s + _AHEAD_S
            before, result = result, _run(setup, fleet, until_s)
            _check_past(before, result, now_s)
    result = _run(setup, fleet, np.inf)
    wanted_there, ready_there = np.array(counts, np.float64).T
    return Run(targets, result, Scraped(*np.array(seen).T), looks_s, wanted_there, ready_there)


_OF_ALL = ("clients", "extras", "prompts")
"""Of arrivals, what is no column of requests; nobody here has extras or prompts."""


def _run(setup: Setup, fleet: _Fleet, until_s: float) -> Result:
    count = int(np.searchsorted(setup.arrivals.time_s, until_s, "right"))
    columns = {each.name: getattr(setup.arrivals, each.name) for each in fields(setup.arrivals)}
    arrivals = Arrivals(**{name: all_[:count] if name not in _OF_ALL else all_ for name, all_ in columns.items()})
    return run(fleet.spec(), [arrivals], setup.policy(), seeds=[0], timeline_period_s=setup.scrape_s)


def _check_past(before: Result, after: Result, now_s: float) -> None:
    """AssertionError where what was decided on is not so any more."""
    past = np.flatnonzero(before.arrival_s[0] + before.latency_s[0] <= now_s)
    assert np.array_equal(before.latency_s[0, past], after.latency_s[0, past])
    rows = int((before.timeline_s <= now_s).sum())
    assert np.array_equal(before.timeline_pending[0, :rows], after.timeline_pending[0, :rows])


def _backlog_s(setup: Setup, fleet: _Fleet, result: Result, at_s: float) -> float:
    """`balancer_worker_backlog_seconds` of the mean worker: what waits or executes there, in the best batches."""
    row = round(at_s / setup.scrape_s) - 1
    ready = set(fleet.ready(at_s))
    if row < 0 or not ready:
        return np.nan
    (model,), worker = setup.fleet.models, setup.fleet.workers[0]
    pending = result.timeline_pending[0, row, [name in ready for name in result.workers]]
    most = model.batching.max_batch_rows
    device_s, host_s = model.service[worker.device].table(most)
    batch_s = (device_s / worker.speed + host_s) * (np.arange(most + 1) > 0)
    whole, rest = np.divmod(pending.astype(int), most)
    return float((whole * batch_s[most] + batch_s[rest]).mean())


def _p99_s(setup: Setup, result: Result, at_s: float) -> float:
    """`histogram_quantile(0.99, ...)` of the answers of the window; NaN: there are none."""
    answered_s = result.arrival_s[0] + result.latency_s[0]
    within = (answered_s > at_s - setup.window_s) & (answered_s <= at_s) & (result.status[0] == Status.OK)
    counts = np.histogram(result.latency_s[0, within], [0.0, *setup.bounds_s, np.inf])[0]
    if not counts.any():
        return np.nan
    rank = 0.99 * counts.sum()
    bucket = int(np.searchsorted(counts.cumsum(), rank))
    if bucket == len(setup.bounds_s):
        return setup.bounds_s[-1]
    lower, upper = (0.0, *setup.bounds_s)[bucket], setup.bounds_s[bucket]
    return float(lower + (upper - lower) * (rank - counts[:bucket].sum()) / counts[bucket])
