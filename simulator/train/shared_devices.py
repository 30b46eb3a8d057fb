"""Random models on random workers that share devices: drawn from ranges that are written down, by one generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.spec import BatchingSpec, DeviceSpec, ModelSpec, NetworkSpec, Noise, ServiceTime, SimulatedWorker
from simulator.workload.draws import ONE, Shares
from simulator.workload.workload import ModelTraffic

NETWORK = NetworkSpec(to_worker_s=0.0005, to_client_s=0.0003, outcome_s=0.001)


def drawn(default: Any, how: str, what: str) -> Any:
    """A field of ranges: what is drawn, and how, for the page that tells of it."""
    return field(default=default, metadata={"how": how, "what": what})


@dataclass(frozen=True)
class Ranges:
    """Of what models and workers are drawn; each draw is independent of the others unless said otherwise."""

    device_kinds: tuple[int, int] = drawn((1, 3), "whole, uniform", "kinds of devices")
    speed: tuple[float, float] = drawn((1.0, 6.0), "log-uniform", "speed of a kind")
    models: tuple[int, int] = drawn((2, 4), "whole, uniform", "models")
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


@dataclass(frozen=True)
class Parts:
    """What a fleet and its requests are made of."""

    models: tuple[ModelSpec, ...]
    traffic: tuple[ModelTraffic, ...]
    workers: tuple[SimulatedWorker, ...]


def log_uniform(dice: np.random.Generator, between: tuple[float, float]) -> float:
    """Equally often in each octave."""
    return float(np.exp(dice.uniform(*np.log(between))))


def whole(dice: np.random.Generator, between: tuple[int, int]) -> int:
    """Both ends included."""
    return int(dice.integers(between[0], between[1] + 1))


def random_parts(dice: np.random.Generator, ranges: Ranges) -> Parts:
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
    dice: np.random.Generator, ranges: Ranges, name: str, kinds: list[tuple[str, float]]
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
