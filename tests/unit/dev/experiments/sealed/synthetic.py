"""Made-up runs: all requests of a seed take equally long, so mean and p99 are what a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from support.results import make_result

from dev.experiments.sealed.runs import Watch
from simulator.compare.metrics import RunMetrics, measure
from simulator.scenario import Scenario
from simulator.spec import CacheSpec, FleetSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.workload.workload import ModelTraffic, Workload


def make_scenario(name: str = "unlike", speeds: Sequence[float] = (1.0, 3.0), keys: bool = False) -> Scenario:
    fleet = FleetSpec(
        models=(ModelSpec("m", {"*": ServiceTime((1,), (0.01,))}),),
        workers=tuple(SimulatedWorker(f"w{i}", speed=speed) for i, speed in enumerate(speeds)),
        cache=CacheSpec(entries=10, saving=0.5) if keys else CacheSpec(),
    )
    return Scenario(name, "", "held-out", fleet, Workload(100.0, (ModelTraffic("m"),)))


def metrics(by_seed: Sequence[float], ok: float = 1.0) -> RunMetrics:
    """Of latencies in seconds, one a seed; all but a share `ok` of the requests end in an error."""
    latency_s = np.repeat(np.asarray(by_seed, float)[:, None], 200, axis=1)
    status = np.zeros(latency_s.shape, np.int8)
    status[:, round(200 * ok) :] = 1
    return measure(make_result(latency_s, status=status), 0.0)


def make_watch(seeds: int) -> Watch:
    """In the first seed the guard fell twice, for another reason each time."""
    falls = np.zeros(seeds, np.int64)
    falls[0] = 2
    return Watch(
        by_baseline=np.full(seeds, 0.25), fallen=np.full(seeds, 0.2), falls=falls, reasons=Counter(range=1, late=1)
    )
