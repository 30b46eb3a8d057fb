"""Routed requests a second in the simulator, on one core; no network, no Triton."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from benchmarks.environments import aims as environments_aims
from benchmarks.environments import for_scale
from benchmarks.results import Aim, Section, Table
from policies import BUILTIN
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.capacity import capacity_per_s
from simulator.run import run
from simulator.spec import Batching, FleetSpec, ModelSpec, Network, Noise, Reports, ServiceTime, WorkerSpec
from simulator.workload.workload import ModelTraffic, Workload

WORKERS = (8, 32, 128, 256, 1000)
ENVIRONMENTS = (1, 16, 64, 256, 1024)
MODELS = (1, 3, 8)
ROUNDS = 5
LOAD = 0.75
_LEAST_REQUESTS = 500
"""Of one environment: enough to fill its fleet."""


@dataclass(frozen=True)
class Case:
    """What is run; the base case by default."""

    compiled: bool
    workers: int = 32
    models: int = 3
    environments: int = 0
    """0: 16 where the engine decides; for NumPy 256, or fewer where the fleets are large."""

    @property
    def batch(self) -> int:
        """How many environments."""
        if self.environments:
            return self.environments
        return 16 if self.compiled else min(256, max(16, 8192 // self.workers))

    @property
    def requests(self) -> int:
        """In each environment: longer runs where there are few."""
        total, most = (320_000, 320_000) if self.compiled else (100_000, 4000)
        return max(_LEAST_REQUESTS, min(total // self.batch, most))


@dataclass(frozen=True)
class Speed:
    """Of one policy in one case, medians over rounds; CPU time."""

    requests_per_s: float
    """From the first event to the last, without set-up and result."""
    set_up_s: float
    """Of one environment."""
    result_s: float
    """Building the result, of one request."""
    bytes: float
    """That one environment reserves."""
    rounds_per_s: list[float]


def fleet_of(workers: int, models: int) -> FleetSpec:
    """Batches of up to 8, reports every 50 ms that are 50 ms old on average, service times that differ by model."""

    def service(factor: int) -> ServiceTime:
        return ServiceTime((1, 8), (0.004 * factor, 0.012 * factor))

    batching = Batching(max_batch_rows=8, queue_delay_s=0.001)
    return FleetSpec(
        models=tuple(
            ModelSpec(f"model-{m}", {"*": service(1 + m % 3)}, Noise("lognormal", 0.1), batching) for m in range(models)
        ),
        workers=tuple(WorkerSpec(f"worker-{w}") for w in range(workers)),
        reports=Reports(period_s=0.05, delay_s=0.025),
        network=Network(to_worker_s=0.0005, to_client_s=0.0003, outcome_s=0.001),
    )


def arrivals_of(fleet: FleetSpec, environments: int, requests: int) -> list[Arrivals]:
    """Poisson, every model as often, at `LOAD` of the fleet's capacity."""
    workload = Workload(1.0, tuple(ModelTraffic(model.name) for model in fleet.models))
    workload = workload.at_rate(LOAD * capacity_per_s(fleet, workload))
    return [workload.arrivals(fleet, requests, seed) for seed in range(environments)]


def speed(case: Case, policy: str, rounds: int) -> Speed:
    """Set up and run again and again; a first round, which compiles and fills the caches, is left out.

    Args:
        case: What is run.
        policy: Name of a built-in one.
        rounds: How often.
    """
    fleet = fleet_of(case.workers, case.models)
    arrivals = arrivals_of(fleet, case.batch, case.requests)
    decide = _decide_inside if case.compiled else _decide
    rounds_s, size = [], 0
    for _ in range(rounds + 1):
        began_s = time.thread_time()
        batch = Batch([fleet] * len(arrivals), arrivals, range(len(arrivals)))
        ready_s = time.thread_time()
        decide(batch, policy)
        decided_s = time.thread_time()
        batch.result()
        rounds_s.append(np.diff([began_s, ready_s, decided_s, time.thread_time()]))
        size = _bytes(batch.sim)
    requests = case.batch * case.requests
    set_up_s, running_s, result_s = np.median(rounds_s[1:], axis=0)
    return Speed(
        requests_per_s=float(requests / running_s),
        set_up_s=float(set_up_s / case.batch),
        result_s=float(result_s / requests),
        bytes=size / case.batch,
        rounds_per_s=[float(requests / one[1]) for one in rounds_s[1:]],
    )


def _decide_inside(batch: Batch, policy: str) -> None:
    if not batch.run_inside(BUILTIN[policy]()):
        raise RuntimeError(f"the engine does not decide as {policy}")


def _decide(batch: Batch, policy: str) -> None:
    """As `simulator.run.run` does."""
    decider = BUILTIN[policy]()
    waiting = batch.start()
    while waiting:
        waiting = batch.step(batch.draw(batch.probabilities(decider, batch.view())))


def _bytes(record: Any) -> int:
    """Of all arrays in nested records."""
    if isinstance(record, np.ndarray):
        return record.nbytes
    if is_dataclass(record):
        record = tuple(vars(record).values())
    return sum(map(_bytes, record)) if isinstance(record, tuple) else 0


def first_run_s() -> float:
    """Until the first request of a process is decided: compiling, or reading what was compiled before."""
    fleet = fleet_of(2, 1)
    began_s = time.perf_counter()
    run(fleet, arrivals_of(fleet, 1, 10), BUILTIN["round_robin"]())
    return time.perf_counter() - began_s


def measure(quick: bool) -> Section:
    """All tables."""
    rounds = 1 if quick else ROUNDS
    first_s = first_run_s()
    by_policy = {
        name: {compiled: speed(Case(compiled), name, rounds) for compiled in (True, False)} for name in BUILTIN
    }
    growth = _growth(1 if quick else 3, (32,) if quick else WORKERS, (1, 16, 256) if quick else ENVIRONMENTS)
    others, others_raw = for_scale(quick)
    raw = {
        "first_run_s": first_s,
        "policies": {
            name: {"compiled" if compiled else "numpy": asdict(one) for compiled, one in speeds.items()}
            for name, speeds in by_policy.items()
        },
        "growth": [
            {"case": asdict(case), "batch": case.batch, "policy": name, "speed": asdict(one)}
            for case, name, one in growth
        ],
        "others": others_raw,
    }
    compiled = {name: speeds[True].requests_per_s / 1e6 for name, speeds in by_policy.items()}
    learned = compiled.pop("learned")
    slowest = min(compiled, key=lambda name: compiled[name])
    over_policies = float(np.median([speeds[False].requests_per_s for speeds in by_policy.values()]))
    aims = [
        Aim("Simulator, compiled round_robin", compiled["round_robin"], "million/s", 3.0, True),
        Aim(f"Simulator, compiled, slowest but learned ({slowest})", compiled[slowest], "million/s", 1.0, True),
        Aim("Simulator, compiled learned", learned, "million/s", 0.12, True),
        Aim("Simulator, NumPy, median of the policies", over_policies / 1e6, "million/s", 1.0, True),
        *environments_aims(others_raw),
    ]
    return Section([_policy_table(by_policy, first_s), _growth_table(growth), others], raw, aims)


def _growth(rounds: int, workers: Sequence[int], environments: Sequence[int]) -> list[tuple[Case, str, Speed]]:
    found = []
    for compiled, name in ((True, "round_robin"), (True, "least_requests"), (False, "wlpr")):
        base = Case(compiled)
        cases = [
            *(replace(base, workers=n) for n in workers),
            *(replace(base, environments=e) for e in environments),
            *(replace(base, models=m) for m in MODELS),
        ]
        found += [
            (case, name, speed(case, name, rounds))
            for case in {(one.workers, one.models, one.batch): one for one in cases}.values()
        ]
    return found


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f}" if rate >= 1e5 else f"{rate / 1e6:.3f}"


def _policy_table(by_policy: dict[str, dict[bool, Speed]], first_s: float) -> Table:
    rows = [
        [name, *(_millions(speeds[compiled].requests_per_s) for compiled in (True, False))]
        for name, speeds in by_policy.items()
    ]
    title = f"Simulator, million requests routed a second: 32 workers, 3 models, batching, stale reports, load {LOAD}"
    note = (
        f"Compiled: {Case(True).batch} environments; NumPy: {Case(False).batch}. Without the set-up (next table) and "
        f"{first_s:.1f} s until a process decides its first request, 25 s and more where nothing was compiled before."
    )
    return Table(title, ["policy", "compiled", "NumPy"], rows, note)


def _growth_table(growth: Sequence[tuple[Case, str, Speed]]) -> Table:
    rows = [
        [
            f"{name}, {'compiled' if case.compiled else 'NumPy'}",
            f"{case.workers:,}",
            f"{case.models}",
            f"{case.batch:,}",
            _millions(one.requests_per_s),
            f"{one.set_up_s * 1e3:.2f}",
            f"{one.bytes / 2**20:.2f}",
        ]
        for case, name, one in growth
    ]
    columns = ["policy", "workers", "models", "environments", "million/s", "set-up ms", "MiB"]
    return Table("How it grows; set-up and memory are those of one environment", columns, rows)
