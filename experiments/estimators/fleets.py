"""Fleets whose workers share their device among several models: one of the three sizes 1, 4 and 20, and random ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments import holding
from simulator.scenario import Scenario, load_scenario
from simulator.spec import Batching, FleetSpec, ModelSpec, Noise, ServiceTime, WorkerSpec
from simulator.training.shared_devices import NETWORK, Ranges, random_parts
from simulator.workload.times import Poisson, Process
from simulator.workload.workload import ModelTraffic, Workload
from tools.load.arrivals import Bursts

_PROCESSES: dict[str, Process] = {"Poisson": Poisson(), "bursts": Bursts(factor=2.0, mean_burst_s=0.3, mean_calm_s=0.9)}
_STREAM = 13
"""Of the generators of random fleets."""


def three_models() -> list[Scenario]:
    """Models of 5, 20 and 100 ms, each a third of the work, on eight workers of speeds 1, 1, 2 and 4."""
    models = tuple(
        ModelSpec(
            name,
            {"*": ServiceTime((1, 4, 8), (0.005 * times, 0.010 * times, 0.016 * times))},
            Noise("lognormal", 0.05),
            Batching(max_batch_rows=8),
        )
        for name, times in (("small", 1), ("medium", 4), ("large", 20))
    )
    workers = tuple(WorkerSpec(f"w{i}", speed=speed) for i, speed in enumerate((1, 1, 1, 1, 2, 2, 4, 4)))
    traffic = tuple(ModelTraffic(name, share) for name, share in (("small", 20), ("medium", 5), ("large", 1)))
    fleet = FleetSpec(models, workers, network=NETWORK)
    return [
        Scenario(f"{name}, load {load:g}", "", "train", fleet, Workload(1.0, traffic, process)).with_load(load)
        for load in (0.8, 0.9)
        for name, process in _PROCESSES.items()
    ]


def three_models_shared_by_balancers() -> list[Scenario]:
    """The same at load 0.8 behind two and four balancers, each of which sees its own requests alone."""
    return shared_by_balancers([scenario for scenario in three_models() if scenario.name.endswith("load 0.8")])


def shared_by_balancers(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Each of them behind two and four balancers."""
    return [
        dataclasses.replace(
            scenario,
            name=f"{scenario.name}, {balancers} balancers",
            fleet=dataclasses.replace(scenario.fleet, balancers=balancers),
        )
        for scenario in scenarios
        for balancers in (2, 4)
    ]


def long_services() -> list[Scenario]:
    """Those that `experiments.holding` holds requests for, whose length nobody knows; here none is held."""
    scenario = load_scenario(Path(holding.__file__).with_name("long-services.yaml"))
    return [dataclasses.replace(scenario.with_load(load), name=f"long services, load {load:g}") for load in (0.8, 0.9)]


def random_fleet(seed: int) -> Scenario:
    """Two to four models of 3 to 90 ms with about equal shares of the work, on three to twelve workers of up to three
    kinds; one balancer. Nothing in it was chosen by what came out."""
    dice = np.random.default_rng([_STREAM, seed])
    parts = random_parts(dice, Ranges())
    load, process = float(dice.choice([0.6, 0.7, 0.8, 0.9])), str(dice.choice(list(_PROCESSES)))
    fleet = FleetSpec(parts.models, parts.workers, network=NETWORK)
    workload = Workload(1.0, parts.traffic, _PROCESSES[process])
    return Scenario(f"random {seed}", "", "train", fleet, workload).with_load(load)
