"""The written distribution of scenarios: every number that is drawn stands here, and the page is made of it."""

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import simulator
from balancer.load.arrivals import Bursts
from simulator.scenario import Scenario
from simulator.spec import (
    BatchingSpec,
    CacheSpec,
    ColdStart,
    DeviceSpec,
    Fault,
    FaultKind,
    FleetSpec,
    ModelSpec,
    NetworkSpec,
    Noise,
    Reports,
    ServiceTime,
    SimulatedWorker,
)
from simulator.workload.draws import ONE, Distribution, Lognormal, Sessions, Shares
from simulator.workload.times import Diurnal, Poisson, Process
from simulator.workload.trace import Recorded, read_recorded
from simulator.workload.workload import ModelTraffic, Workload

TRACES = ("azure_llm_2023_code.csv.gz", "azure_llm_2023_conv.csv.gz")
_DATA = Path(simulator.__file__).parent / "data"
_OF_SHARES = "shares"
_FOR_GOOD: tuple[FaultKind, ...] = ("leave",)
NETWORK = NetworkSpec(to_worker_s=0.0005, to_client_s=0.0003, outcome_s=0.001)


def drawn(default: Any, how: str, what: str) -> Any:
    return field(default=default, metadata={"how": how, "what": what})


@dataclass(frozen=True)
class DrawnRanges:
    """All that a sealed scenario is drawn from; each draw is independent of the others unless said otherwise."""

    device_kinds: tuple[int, int] = drawn((1, 3), "whole, uniform", "kinds of devices")
    speed: tuple[float, float] = drawn((1.0, 6.0), "log-uniform", "speed of a kind")
    models: tuple[int, int] = drawn((1, 6), "whole, uniform", "models")
    one_row_s: tuple[float, float] = drawn((0.003, 0.090), "log-uniform", "seconds of one row on a device of speed 1")
    fixed_share: tuple[float, float] = drawn(
        (0.3, 0.8), "uniform", "share of these that a batch takes once; the rest it takes for each row"
    )
    most_rows: tuple[int, ...] = drawn((1, 4, 8, 16), "one of", "largest batch of a model")
    kind_sigma: float = drawn(
        0.15, "normal, standard deviation", "logarithm of a model's time on a kind over what the speed says"
    )
    noise_cv: tuple[float, ...] = drawn((0.05, 0.2, 0.5), "one of", "variation of a model's executions (lognormal)")
    several_rows: float = drawn(
        0.5, "probability", "a model's requests have 1 row (60%) or 4 (40%; no more than its largest batch), else 1"
    )
    work_sigma: float = drawn(0.5, "normal, standard deviation", "logarithm of a model's share of the work, unscaled")
    instances: tuple[int, int] = drawn((1, 2), "whole, uniform", "instances of a model on each worker")
    at_once: tuple[int, int] = drawn((2, 4), "whole, uniform", "executions at once on devices of a kind that overlaps")
    interference: tuple[float, ...] = drawn((1.0, 0.8, 0.5), "one of", "how much these slow each other down")
    overlapping: float = drawn(0.3, "probability", "a kind of device overlaps executions; else one at a time")
    workers: tuple[int, int] = drawn(
        (4, 12), "whole, uniform", "workers, over the number of kinds (rounded down): workers of each kind"
    )
    long: float = drawn(
        0.2, "probability", "services are long: seconds and variation of the next two lines, and no model batches"
    )
    long_row_s: tuple[float, float] = drawn((0.05, 0.3), "log-uniform", "seconds of one row where services are long")
    long_work_cv: float = drawn(2.0, "always", "variation of the hidden work where services are long (lognormal)")
    hidden_work: float = drawn(0.2, "probability", "elsewhere, a model's requests have hidden work")
    hidden_work_cv: float = drawn(1.0, "always", "variation of that (lognormal)")
    placed: float = drawn(
        0.25, "probability", "with several models, each is on half of the workers (at random, at least two) only"
    )
    arrivals: tuple[tuple[str, float], ...] = drawn(
        (("poisson", 0.35), ("bursts", 0.3), ("trace", 0.25), ("diurnal", 0.1)),
        _OF_SHARES,
        f"arrivals; a trace is one of {', '.join(TRACES)}, times alone",
    )
    burst_factor: tuple[float, float] = drawn((1.5, 4.0), "uniform", "rate in a burst over that in the calm")
    burst_s: tuple[float, float] = drawn((0.1, 1.0), "log-uniform", "mean seconds of a burst")
    calm: tuple[float, float] = drawn((1.5, 6.0), "uniform", "mean seconds of the calm, over those of a burst")
    day_s: tuple[float, float] = drawn((5.0, 20.0), "uniform", "seconds of a day (diurnal)")
    day_amplitude: tuple[float, float] = drawn((0.2, 0.6), "uniform", "amplitude of a day, of the mean rate")
    load: tuple[float, float] = drawn((0.5, 0.95), "uniform", "mean rate, of the capacity without faults and hits")
    balancers: tuple[tuple[str, float], ...] = drawn(
        (("1", 0.5), ("2", 0.2), ("3", 0.1), ("4", 0.2)), _OF_SHARES, "balancers"
    )
    report_s: tuple[float, ...] = drawn((0.05, 0.05, 0.2), "one of", "seconds between reports of a worker")
    report_loss: tuple[float, ...] = drawn((0.0, 0.0, 0.02), "one of", "share of reports that are lost")
    deadlines: tuple[tuple[str, float], ...] = drawn(
        (("none", 0.3), ("one", 0.3), ("two", 0.4)), _OF_SHARES, "classes of deadlines"
    )
    deadline: tuple[float, float] = drawn(
        (4.0, 15.0), "log-uniform", "a model's deadline (the tight one of two), over its time on the slowest kind"
    )
    loose: tuple[float, float] = drawn((3.0, 8.0), "uniform", "the loose deadline over the tight one")
    tight_share: tuple[float, float] = drawn((0.2, 0.6), "uniform", "share of requests with the tight deadline")
    keys: float = drawn(
        0.2, "probability", "requests belong to sessions, which are cheaper where they were; policies place them"
    )
    saving: tuple[float, float] = drawn((0.3, 0.7), "uniform", "share of the work that a hit saves")
    entries: tuple[int, int] = drawn((50, 300), "whole, uniform", "sessions that a worker remembers")
    active: tuple[int, int] = drawn((100, 600), "whole, uniform", "sessions at any moment")
    turns: tuple[float, float] = drawn((3.0, 10.0), "uniform", "mean requests of a session")
    cold: float = drawn(0.5, "probability", "a worker that comes back is twice as slow for 20 executions")
    faults: float = drawn(
        0.3, "probability", "something happens to some workers: 1 to a quarter of them (rounded down), uniform"
    )
    fault_kinds: tuple[FaultKind, ...] = drawn(
        ("slow", "slow", "stall", "crash", "errors", "silent", "leave"), "one of", "of each of these workers"
    )
    slowness: tuple[float, float] = drawn((1.5, 5.0), "uniform", "factor of a slow one's times")
    errors: tuple[float, float] = drawn((0.3, 1.0), "uniform", "share of a failing one's requests that fail")
    fault_at: tuple[float, float] = drawn((0.15, 0.8), "uniform", "when it begins, of the length of a run")
    fault_lasts: tuple[float, float] = drawn(
        (0.03, 0.2), "uniform", "how long it lasts, of that length; who leaves does so for good"
    )
    requests: int = drawn(12000, "always", "requests of a run, of which the first tenth is not counted")


DISTRIBUTION = DrawnRanges()
NEVER_SEALED = 1 << 20
"""The first of the numbers that no sealed scenario has, whatever its seed: for training and tuning."""


def scenario(seed: int, number: int, ranges: DrawnRanges = DISTRIBUTION) -> Scenario:
    """One of the scenarios of a seed, by its number from 0 on; equal arguments give equal ones."""
    dice = np.random.default_rng([seed, number])
    if _happens(dice, ranges.long):
        parts = random_parts(dice, replace(ranges, one_row_s=ranges.long_row_s, most_rows=(1,)))
        traffic = tuple(replace(each, work=Lognormal(ranges.long_work_cv)) for each in parts.traffic)
    else:
        parts = random_parts(dice, ranges)
        traffic = tuple(_hidden(dice, ranges, each) for each in parts.traffic)
    traffic = _due(dice, ranges, parts.models, traffic)
    workers = _placed(dice, ranges, parts)
    load, keyed = float(dice.uniform(*ranges.load)), _happens(dice, ranges.keys)
    fleet = FleetSpec(
        models=parts.models,
        workers=workers,
        balancers=int(_named(dice, ranges.balancers)),
        reports=Reports(float(dice.choice(ranges.report_s)), loss=float(dice.choice(ranges.report_loss))),
        network=NETWORK,
        cold=ColdStart(20, 2.0) if _happens(dice, ranges.cold) else ColdStart(),
        cache=CacheSpec(whole(dice, ranges.entries), float(dice.uniform(*ranges.saving))) if keyed else CacheSpec(),
    )
    # Policies place keys, rather than the router's hash, which is the same under all of them.
    fleet = replace(fleet, settings=replace(fleet.settings, sticky_keys=not keyed))
    sessions = Sessions(whole(dice, ranges.active), float(dice.uniform(*ranges.turns))) if keyed else None
    made = Scenario(
        f"s{number:02d}", "", "held-out", fleet, _arriving(dice, ranges, traffic, sessions), ranges.requests
    ).with_load(load)
    length_s = ranges.requests / made.workload.rate_per_s
    faults = _faults(dice, ranges, workers, length_s) if _happens(dice, ranges.faults) else ()
    return replace(made, fleet=replace(made.fleet, faults=faults))


@dataclass(frozen=True)
class Parts:
    models: tuple[ModelSpec, ...]
    traffic: tuple[ModelTraffic, ...]
    workers: tuple[SimulatedWorker, ...]


def log_uniform(dice: np.random.Generator, between: tuple[float, float]) -> float:
    """Equally often in each octave."""
    return float(np.exp(dice.uniform(*np.log(between))))


def whole(dice: np.random.Generator, between: tuple[int, int]) -> int:
    """Both ends included."""
    return int(dice.integers(between[0], between[1] + 1))


def random_parts(dice: np.random.Generator, ranges: DrawnRanges) -> Parts:
    """Models and workers; equal generators give equal ones."""
    kinds = [(f"kind{i}", log_uniform(dice, ranges.speed)) for i in range(whole(dice, ranges.device_kinds))]
    models, traffic = [], []
    for i in range(whole(dice, ranges.models)):
        one, traffic_of_one = _model(dice, ranges, f"m{i}", kinds)
        models.append(one)
        traffic.append(traffic_of_one)
    workers: list[SimulatedWorker] = []
    for kind, _ in kinds:
        at_once, interference = whole(dice, ranges.at_once), float(dice.choice(ranges.interference))
        sharing = DeviceSpec(at_once, interference) if dice.random() < ranges.overlapping else DeviceSpec()
        least, most = (count // len(kinds) for count in ranges.workers)
        workers += [
            SimulatedWorker(f"{kind}-{i}", device=kind, sharing=sharing) for i in range(whole(dice, (least, most)))
        ]
    return Parts(tuple(models), tuple(traffic), tuple(workers))


def _model(
    dice: np.random.Generator, ranges: DrawnRanges, name: str, kinds: list[tuple[str, float]]
) -> tuple[ModelSpec, ModelTraffic]:
    one_row_s = log_uniform(dice, ranges.one_row_s)
    fixed, most = float(dice.uniform(*ranges.fixed_share)), int(dice.choice(ranges.most_rows))
    service = {}
    for kind, speed in kinds:
        here_s = one_row_s / speed * float(np.exp(dice.normal(0, ranges.kind_sigma)))
        points = {1: here_s, most: here_s * (fixed + (1 - fixed) * most)}
        service[kind] = ServiceTime(tuple(points), tuple(points.values()))
    noise = Noise("lognormal", float(dice.choice(ranges.noise_cv)))
    rows = Shares({1: 0.6, min(4, most): 0.4}) if dice.random() >= 1 - ranges.several_rows else ONE
    share = float(np.exp(dice.normal(0, ranges.work_sigma)) / one_row_s)
    instances = whole(dice, ranges.instances)
    return ModelSpec(name, service, noise, BatchingSpec(max_batch_rows=most), instances), ModelTraffic(
        name, share, rows
    )


def _happens(dice: np.random.Generator, probability: float) -> bool:
    return bool(dice.random() < probability)


def _named(dice: np.random.Generator, shares: tuple[tuple[str, float], ...]) -> str:
    names, weights = zip(*shares, strict=True)
    return str(dice.choice(names, p=weights))


def _hidden(dice: np.random.Generator, ranges: DrawnRanges, traffic: ModelTraffic) -> ModelTraffic:
    work: Distribution = Lognormal(ranges.hidden_work_cv)
    return replace(traffic, work=work) if _happens(dice, ranges.hidden_work) else traffic


def _due(
    dice: np.random.Generator,
    ranges: DrawnRanges,
    models: tuple[ModelSpec, ...],
    traffic: tuple[ModelTraffic, ...],
) -> tuple[ModelTraffic, ...]:
    classes = _named(dice, ranges.deadlines)
    loose, share = float(dice.uniform(*ranges.loose)), float(dice.uniform(*ranges.tight_share))
    found = []
    for model, one in zip(models, traffic, strict=True):
        slowest_s = max(service.device_s[0] for service in model.service.values())
        tight_s = slowest_s * log_uniform(dice, ranges.deadline)
        by_class: dict[str, float | Shares] = {
            "none": np.inf,
            "one": tight_s,
            "two": Shares({tight_s: share, tight_s * loose: 1 - share}),
        }
        found.append(replace(one, deadline_s=by_class[classes]))
    return tuple(found)


def _placed(dice: np.random.Generator, ranges: DrawnRanges, parts: Parts) -> tuple[SimulatedWorker, ...]:
    """The workers with the models that they hold; who was left without any holds all."""
    if not _happens(dice, ranges.placed) or len(parts.models) == 1:
        return parts.workers
    held: list[list[str]] = [[] for _ in parts.workers]
    for model in parts.models:
        for place in dice.permutation(len(held))[: max(2, len(held) // 2)]:
            held[int(place)].append(model.name)
    return tuple(replace(worker, models=tuple(each)) for worker, each in zip(parts.workers, held, strict=True))


def _arriving(
    dice: np.random.Generator,
    ranges: DrawnRanges,
    traffic: tuple[ModelTraffic, ...],
    sessions: Sessions | None,
) -> Workload:
    kind = _named(dice, ranges.arrivals)
    if kind == "trace":
        recorded = _trace(str(dice.choice(TRACES)))
        return Workload(1.0, traffic, recorded=recorded, keys=sessions)
    process: Process = Poisson()
    if kind == "bursts":
        factor, burst_s = float(dice.uniform(*ranges.burst_factor)), log_uniform(dice, ranges.burst_s)
        process = Bursts(factor, burst_s, burst_s * float(dice.uniform(*ranges.calm)))
    elif kind == "diurnal":
        process = Diurnal(float(dice.uniform(*ranges.day_s)), float(dice.uniform(*ranges.day_amplitude)))
    return Workload(1.0, traffic, process, keys=sessions)


@cache
def _trace(name: str) -> Recorded:
    return read_recorded(_DATA / name)


def _faults(
    dice: np.random.Generator, ranges: DrawnRanges, workers: tuple[SimulatedWorker, ...], length_s: float
) -> tuple[Fault, ...]:
    chosen = dice.permutation(len(workers))[: whole(dice, (1, max(1, len(workers) // 4)))]
    faults = []
    for place in chosen:
        kind: FaultKind = ranges.fault_kinds[int(dice.integers(len(ranges.fault_kinds)))]
        amount = float(dice.uniform(*(ranges.slowness if kind == "slow" else ranges.errors)))
        at_s, lasts_s = (length_s * float(dice.uniform(*each)) for each in (ranges.fault_at, ranges.fault_lasts))
        faults.append(Fault(kind, workers[int(place)].name, at_s, np.inf if kind in _FOR_GOOD else lasts_s, amount))
    return tuple(faults)


SHARED, LONG, KEYED, DUE, BALANCERS, FAULTS, PLAIN = (
    "several models on shared devices",
    "long services",
    "keys that save work",
    "deadlines",
    "several balancers",
    "faults",
    "none of the first four",
)
PLACES = (SHARED, LONG, KEYED, DUE)
"""Where there is more to win than by placing requests of one model well."""


def kinds(one: Scenario) -> tuple[str, ...]:
    fleet, traffic = one.fleet, one.workload.traffic
    batching: set[BatchingSpec] = {model.batching for model in fleet.models}
    found = {
        SHARED: len(fleet.models) > 1,
        LONG: batching == {BatchingSpec(max_batch_rows=1)} and all(_varies(each) for each in traffic),
        KEYED: fleet.cache.entries > 0,
        DUE: any(isinstance(each.deadline_s, Shares) or each.deadline_s < np.inf for each in traffic),
    }
    found[PLAIN] = not any(found.values())
    found |= {BALANCERS: fleet.balancers > 1, FAULTS: bool(fleet.faults)}
    return tuple(name for name, is_so in found.items() if is_so)


def _varies(traffic: ModelTraffic) -> bool:
    return isinstance(traffic.work, Lognormal) and traffic.work.cv >= DISTRIBUTION.long_work_cv
