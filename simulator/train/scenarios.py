"""Random fleets and workloads, so that a policy learns what holds for all of them (domain randomisation).

Source: Tobin et al. 2017, Domain randomization for transferring deep neural networks, IROS. Nothing here was chosen by
looking at the held-out scenarios: ranges are those of the train split, widened. Half of the random scenarios are of the
written distribution instead (`distribution.py`): several models on shared devices, long services, keys that save work.
Sealed scenarios are of it too, with numbers that are never drawn here.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from balancer.load.arrivals import Bursts
from simulator.scenario import Scenario
from simulator.spec import (
    BatchingSpec,
    ColdStart,
    Fault,
    FaultKind,
    FleetSpec,
    ModelSpec,
    Noise,
    Reports,
    ServiceTime,
    SimulatedWorker,
)
from simulator.train.distribution import DISTRIBUTION, NETWORK, NEVER_SEALED, log_uniform, scenario
from simulator.workload.draws import ONE, Distribution, Exponential, Lognormal, Pareto, Shares
from simulator.workload.times import Diurnal, FlashCrowd, Poisson, Process
from simulator.workload.workload import ModelTraffic, Workload

WORKERS = (4, 16)
_WRITTEN_SHARE = 0.5
_TRAINED = dataclasses.replace(DISTRIBUTION, requests=2000)


@dataclasses.dataclass(frozen=True)
class Randomised:
    """Draws what each episode has: a random scenario, or one of those given at a random multiple of its own rate.

    A value, so that processes can be sent it.
    """

    shipped: tuple[Scenario, ...] = ()
    random_share: float = 0.7
    """Of episodes with a random scenario."""
    load: tuple[float, float] = (0.8, 1.1)
    """Between which the multiple is drawn."""
    workers: tuple[int, int] = WORKERS
    """Of random scenarios."""

    def __post_init__(self) -> None:
        if not self.shipped and self.random_share < 1:
            raise ValueError("scenarios is empty: name at least one, or make all of them random (random share 1)")

    def __call__(self, generator: np.random.Generator) -> Scenario:
        """A scenario; equal generators give equal ones."""
        if generator.random() < self.random_share:
            return random_scenario(generator, self.workers)
        one = self.shipped[int(generator.integers(len(self.shipped)))]
        rate_per_s = one.workload.rate_per_s * float(generator.uniform(*self.load))
        return dataclasses.replace(one, workload=one.workload.at_rate(rate_per_s))


def random_scenario(generator: np.random.Generator, workers: tuple[int, int] = WORKERS) -> Scenario:
    """A fleet, of at least and at most so many workers, with its workload; equal generators give equal ones."""
    if generator.random() < _WRITTEN_SHARE:
        written = dataclasses.replace(_TRAINED, workers=workers)
        return dataclasses.replace(scenario(int(generator.integers(1 << 32)), NEVER_SEALED, written), name="random")
    return _single(generator, workers)


def _single(generator: np.random.Generator, workers: tuple[int, int]) -> Scenario:
    models = 1 if generator.random() < 0.7 else int(generator.integers(2, 4))
    specs = tuple(_model(generator, f"model-{i}") for i in range(models))
    members = _workers(generator, [spec.name for spec in specs], workers)
    balancers = int(generator.choice([1, 2, 3, 4], p=[0.45, 0.25, 0.1, 0.2]))
    fleet = FleetSpec(
        models=specs,
        workers=members,
        balancers=balancers,
        reports=_reports(generator),
        network=NETWORK,
        faults=_faults(generator, members) if generator.random() < 0.25 else (),
        cold=ColdStart(20, 2.0),
    )
    process, peak = _process(generator)
    traffic = tuple(_traffic(generator, spec, members) for spec in specs)
    one = Scenario("random", "", "train", fleet, Workload(100.0, traffic, process))
    return one.with_load(float(generator.uniform(0.45, 0.92)) / peak)


def _model(generator: np.random.Generator, name: str) -> ModelSpec:
    most = int(generator.choice([1, 4, 8, 12, 16, 32, 64], p=[0.05, 0.1, 0.25, 0.15, 0.25, 0.15, 0.05]))
    one_s = log_uniform(generator, (0.008, 0.08))
    slope = log_uniform(generator, (0.05, 0.6))
    # Device time grows faster towards the largest batch, or slower, as the GPU fills.
    bend = float(generator.uniform(0.7, 1.3))
    rows = tuple(sorted({1, max(1, most // 4), most}))
    device_s = tuple(one_s * (1 + slope * (row - 1) * (bend if 1 < row < most else 1.0)) for row in rows)
    return ModelSpec(
        name,
        {"*": ServiceTime(rows, device_s)},
        noise=Noise("lognormal", float(generator.choice([0.02, 0.05, 0.1, 0.3]))),
        batching=BatchingSpec(max_batch_rows=most),
        instances=int(generator.integers(1, 3)),
    )


def _workers(
    generator: np.random.Generator, models: list[str], between: tuple[int, int]
) -> tuple[SimulatedWorker, ...]:
    count = int(generator.integers(between[0], between[1] + 1))
    kinds = int(generator.choice([1, 2, 3, 4], p=[0.25, 0.3, 0.25, 0.2]))
    speeds = [log_uniform(generator, (0.8, 5.0)) for _ in range(kinds)]
    workers = []
    for i in range(count):
        # Everybody has the first model or all; every model is somewhere.
        few = len(models) > 1 and i >= 2 and generator.random() < 0.4
        held = tuple(sorted({models[int(j)] for j in generator.integers(len(models), size=2)})) if few else ()
        workers.append(SimulatedWorker(f"worker-{i}", speed=speeds[int(generator.integers(kinds))], models=held))
    return tuple(workers)


def _reports(generator: np.random.Generator) -> Reports:
    stale = generator.random() < 0.4
    return Reports(
        period_s=log_uniform(generator, (0.02, 0.3)) if stale else 0.05,
        delay_s=log_uniform(generator, (0.001, 0.01)) if stale else 0.001,
        jitter_s=float(generator.uniform(0, 0.01)) if stale else 0.0,
        loss=float(generator.uniform(0, 0.05)) if stale else 0.0,
    )


def _process(generator: np.random.Generator) -> tuple[Process, float]:
    """When requests arrive, and what to divide the load by so that long overload stays rare."""
    kind = generator.random()
    if kind < 0.4:
        return Poisson(), 1.0
    if kind < 0.85:
        factor = log_uniform(generator, (1.5, 8.0))
        burst_s = log_uniform(generator, (0.05, 1.0))
        return Bursts(factor, burst_s, burst_s * float(generator.uniform(1.5, 12))), float(min(factor, 3.0) ** 0.2)
    if kind < 0.93:
        return Diurnal(log_uniform(generator, (3, 20)), float(generator.uniform(0.2, 0.6))), 1.2
    return FlashCrowd(float(generator.uniform(2, 5)), 0.5, 8.0, float(generator.uniform(0, 3))), 1.2


def _traffic(generator: np.random.Generator, model: ModelSpec, workers: Sequence[SimulatedWorker]) -> ModelTraffic:
    most = model.batching.max_batch_rows
    rows: Distribution = ONE
    if generator.random() < 0.5 and most >= 4:
        kind = generator.random()
        if kind < 0.6:
            large = int(generator.choice([2, 4, max(4, most // 4)]))
            share = float(generator.uniform(0.1, 0.5))
            rows = Shares({1: 1 - share, large: share})
        elif kind < 0.8:
            rows = Lognormal(cv=float(generator.uniform(0.5, 2)), mean=max(1.5, most / 8))
        else:
            rows = Pareto(1.2, float(most))
    work: Distribution = ONE
    if generator.random() < 0.25:
        works: list[Distribution] = [Exponential(), Lognormal(1.0), Pareto(1.5, 50.0)]
        work = works[int(generator.integers(3))]
    slowest_s = model.service["*"].device_s[0] / min(worker.speed for worker in workers)
    deadline_s = slowest_s * log_uniform(generator, (3, 15))
    return ModelTraffic(model.name, float(generator.uniform(0.3, 1)), rows, work, deadline_s)


def _faults(generator: np.random.Generator, workers: Sequence[SimulatedWorker]) -> tuple[Fault, ...]:
    kinds: tuple[FaultKind, ...] = ("slow", "slow", "stall", "crash", "errors", "silent", "leave")
    chosen = generator.permutation(len(workers))[: int(generator.integers(1, 1 + max(1, len(workers) // 4)))]
    faults = []
    for i in chosen:
        kind = kinds[int(generator.integers(len(kinds)))]
        amount = float(generator.uniform(1.5, 5)) if kind == "slow" else float(generator.uniform(0.3, 1))
        at_s, duration_s = float(generator.uniform(0.2, 4)), float(generator.uniform(0.3, 3))
        last = np.inf if kind == "leave" else duration_s
        faults.append(Fault(kind, workers[int(i)].name, at_s, last, amount))
    return tuple(faults)
