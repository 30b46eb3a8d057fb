"""Routed requests a second in the simulator, on one core; no network, no Triton."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dev.bench.results import Options, Table
from policies import BUILTIN
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.capacity import capacity_per_s
from simulator.run import run
from simulator.scenario import load_scenario
from simulator.spec import BatchingSpec, FleetSpec, ModelSpec, NetworkSpec, Noise, Reports, ServiceTime, SimulatedWorker
from simulator.workload.workload import ModelTraffic, Workload

WORKERS, MODELS, LOAD, ROUNDS = 32, 3, 0.75, 5
GENERATING = "chat", "mooncake"
"""Scenarios of language models."""


@dataclass(frozen=True)
class Case:
    """Who decides, in how many environments side by side, and how many requests each of them has."""

    name: str
    environments: int
    requests: int


COMPILED, NUMPY = Case("compiled", 16, 20_000), Case("NumPy", 256, 500)


def fleet_of(workers: int, models: int) -> FleetSpec:
    """Batches of up to 8, reports every 50 ms that are 50 ms old on average, service times that differ by model."""

    def service(factor: int) -> ServiceTime:
        return ServiceTime((1, 8), (0.004 * factor, 0.012 * factor))

    batching = BatchingSpec(max_batch_rows=8, queue_delay_s=0.001)
    return FleetSpec(
        models=tuple(
            ModelSpec(f"model-{m}", {"*": service(1 + m % 3)}, Noise("lognormal", 0.1), batching) for m in range(models)
        ),
        workers=tuple(SimulatedWorker(f"worker-{w}") for w in range(workers)),
        reports=Reports(period_s=0.05, delay_s=0.025),
        network=NetworkSpec(to_worker_s=0.0005, to_client_s=0.0003, outcome_s=0.001),
    )


def arrivals_of(fleet: FleetSpec, environments: int, requests: int) -> list[Arrivals]:
    """Poisson, every model as often, at `LOAD` of the fleet's capacity."""
    workload = Workload(1.0, tuple(ModelTraffic(model.name) for model in fleet.models))
    workload = workload.at_rate(LOAD * capacity_per_s(fleet, workload))
    return [workload.arrivals(fleet, requests, seed) for seed in range(environments)]


def requests_per_s(case: Case, policy: str, rounds: int) -> float:
    """From the first event to the last, in CPU time, the median of rounds; a first one, which compiles, is left out."""
    fleet = fleet_of(WORKERS, MODELS)
    return _requests_per_s(fleet, arrivals_of(fleet, case.environments, case.requests), case, policy, rounds)


def _requests_per_s(fleet: FleetSpec, arrivals: list[Arrivals], case: Case, policy: str, rounds: int) -> float:
    rounds_s = []
    for _ in range(rounds + 1):
        batch = Batch([fleet] * len(arrivals), arrivals, range(len(arrivals)))
        ready_s = time.thread_time()
        _decide(batch, policy, case)
        rounds_s.append(time.thread_time() - ready_s)
    return sum(map(len, arrivals)) / float(np.median(rounds_s[1:]))


def _decide(batch: Batch, policy: str, case: Case) -> None:
    decider = BUILTIN[policy]()
    if case is COMPILED:
        if not batch.run_inside(decider):
            raise RuntimeError(f"the engine does not decide as {policy}")
        return
    # As `simulator.run.run` does.
    waiting = batch.start()
    while waiting:
        waiting = batch.step(batch.draw(batch.probabilities(decider, batch.view())))


def first_run_s() -> float:
    """Until the first request of a process is decided: compiling, or reading what was compiled before."""
    fleet = fleet_of(2, 1)
    began_s = time.perf_counter()
    run(fleet, arrivals_of(fleet, 1, 10), BUILTIN["round_robin"]())
    return time.perf_counter() - began_s


def measure(options: Options) -> list[Table]:
    rounds, first_s = 1 if options.quick else ROUNDS, first_run_s()
    rows = [[name, *(_millions(requests_per_s(case, name, rounds)) for case in (COMPILED, NUMPY))] for name in BUILTIN]
    title = (
        f"Simulator, million requests routed a second: {WORKERS} workers, {MODELS} models, batching, stale reports, "
        f"load {LOAD}"
    )
    note = (
        f"Compiled: {COMPILED.environments} environments; NumPy: {NUMPY.environments}. Without the set-up and "
        f"{first_s:.1f} s until a process decides its first request, 25 s and more where nothing was compiled before."
    )
    return [Table(title, ["policy", COMPILED.name, NUMPY.name], rows, note), _generating(rounds)]


def _generating(rounds: int) -> Table:
    """Four environments of a whole run each."""
    rows = []
    for name in GENERATING:
        scenario = load_scenario(name)
        arrivals = [scenario.arrivals(seed) for seed in range(4)]
        lengths = [float(np.mean([getattr(one.prompts, of) for one in arrivals])) for of in ("tokens", "output")]
        rate = _requests_per_s(scenario.fleet, arrivals, COMPILED, "expected_latency", rounds)
        rows.append([name, *(f"{length:,.0f}" for length in lengths), _millions(rate)])
    title = "Language models in the simulator, million requests routed a second, expected_latency"
    return Table(title, ["scenario", "prompt tokens", "output tokens", COMPILED.name], rows, "Eight workers.")


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f}" if rate >= 1e5 else f"{rate / 1e6:.3f}"
