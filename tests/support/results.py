"""Made-up results of simulations, for tests of what reads them: no engine has run."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from policies import BUILTIN
from policies.base import Policy
from simulator.arrivals import Arrivals, Extras
from simulator.result import Result
from simulator.scenario import Scenario
from simulator.spec import FleetSpec


def make_result(latency_s: Any, **fields: Any) -> Result:
    """All requests OK, one second apart, answered by worker 0, model 0, no deadline; `fields` replace columns."""
    latency_s = np.atleast_2d(np.asarray(latency_s, float))
    shape = latency_s.shape
    environments, workers = shape[0], fields.get("workers", ("w0", "w1"))
    arrival_s = np.broadcast_to(np.arange(shape[1], dtype=float), shape)
    columns: dict[str, Any] = {
        "arrival_s": arrival_s,
        "latency_s": latency_s,
        "first_s": np.full(shape, np.nan),
        **{f"{name}_tokens": np.full(shape, np.nan) for name in ("prompt", "cached", "matched")},
        "status": np.zeros(shape, np.int8),
        "worker": np.zeros(shape, np.int16),
        "picked": np.zeros(shape, np.int16),
        "attempts": np.ones(shape, np.int8),
        "model": np.zeros(shape, np.int16),
        "rows": np.ones(shape, np.int32),
        "deadline_s": np.full(shape, np.inf),
        "priority": np.zeros(shape, np.int16),
        "tenant": np.zeros(shape, np.int16),
        "pending_integral_s": np.nansum(latency_s, axis=1),
        "end_s": np.nanmax(arrival_s + latency_s, axis=1),
        "busy_s": np.ones((environments, len(workers))),
        "executions": np.ones((environments, len(workers)), np.int64),
        "timeline_s": np.zeros(0),
        "timeline_pending": np.zeros((environments, 0, len(workers))),
        "workers": workers,
        "models": ("m",),
    }
    return Result(**(columns | fields))


def fake_run(
    fleet: FleetSpec,
    arrivals: Sequence[Arrivals],
    policy: Policy,
    *,
    seeds: Sequence[int],
    knowledge: str = "reports",
    timeline_period_s: float = 0.0,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """In place of `simulator.run.run`: gamma latencies whose mean grows with the rate, and with little knowledge."""
    slowness = 1.0 + zlib.crc32(policy.name.encode()) % 97 / 97
    slowness *= {"reports": 1.0, "exact": 0.85, "clairvoyant": 0.75 / slowness}[knowledge]
    rate = len(arrivals[0]) / max(float(arrivals[0].time_s[-1]), 1e-9)
    generators = [np.random.default_rng(seed) for seed in seeds]
    gamma = [generator.gamma(1.5, 0.01, len(arrivals[0])) for generator in generators]
    workers = len(fleet.workers)
    arrival_s = np.array([each.time_s for each in arrivals])
    times_s = np.arange(0.0, arrival_s.max(), timeline_period_s) if timeline_period_s else np.zeros(0)
    if progress is not None:
        progress(arrival_s.size)
    latency_s = 0.02 + np.array(gamma) * slowness * (1 + rate / 1000)
    streams = np.array([(one.extras or Extras.none(len(one))).responses > 0 for one in arrivals])
    return make_result(
        latency_s,
        first_s=np.where(streams, latency_s / 2, np.nan),
        arrival_s=arrival_s,
        end_s=arrival_s[:, -1] + 0.1,
        worker=np.array([generator.integers(0, workers, arrival_s.shape[1]) for generator in generators]),
        model=np.array([each.model for each in arrivals]),
        deadline_s=np.array([each.deadline_s for each in arrivals]),
        busy_s=np.array([generator.random(workers) for generator in generators]) * arrival_s.max(),
        executions=np.ones((len(seeds), workers), np.int64),
        timeline_s=times_s,
        timeline_pending=np.array([generator.poisson(4, (len(times_s), workers)) for generator in generators]),
        workers=tuple(worker.name for worker in fleet.workers),
        models=tuple(model.name for model in fleet.models),
    )


def fake_social(
    scenario: Scenario,
    arrivals: Sequence[Arrivals],
    seeds: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> Result:
    """In place of `simulator.compare.social.run_social`: what the fake clairvoyant has."""
    policy = BUILTIN["expected_latency"]()
    return fake_run(scenario.fleet, arrivals, policy, seeds=seeds, knowledge="clairvoyant", progress=progress)
