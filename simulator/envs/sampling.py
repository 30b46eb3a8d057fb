"""Which fleet and requests an episode has: one scenario, one of several, or what a function of a generator returns."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrivals import Arrivals
from simulator.engine.allocate import PromptRoom, prompt_room
from simulator.scenario import Scenario, load_scenario
from simulator.spec import (
    BatchingSpec,
    CacheSpec,
    Fault,
    FleetSpec,
    GeneratingDevice,
    GenerationSpec,
    ModelSpec,
    Reports,
    SimulatedWorker,
)

Given = str | Path | Scenario
"""A scenario, or the name or file of one."""
Scenarios = Given | Sequence[Given] | Callable[[np.random.Generator], Scenario]
Load = float | tuple[float, float] | None
"""Share of the fleet's capacity; two: between which each episode draws one; None: the scenario's own."""

_ROOMY = 1 << 40
"""Tokens."""
_LOOKED_AT = 64
"""Draws from a function, to learn how large its fleets are."""


class Sampler:
    """Draws episodes. All random choices come from the generator that is handed in, so equal ones give equal episodes.

    Raises:
        ValueError: an argument is out of range, or the scenarios cannot share arrays; named, with the remedy.
    """

    def __init__(self, scenarios: Scenarios, load: Load, requests: int) -> None:
        self._load, self._requests = load, requests
        for share in load if isinstance(load, tuple) else (load,):
            _check_load(share)
        if isinstance(load, tuple) and (len(load) != 2 or load[0] > load[1]):
            raise ValueError(f"load is {load}: give the lower share first, then the higher one")
        self._function = scenarios if callable(scenarios) else None
        if callable(scenarios):
            generator = np.random.default_rng(0)
            looked_at = [scenarios(generator) for _ in range(_LOOKED_AT)]
        else:
            several = [scenarios] if isinstance(scenarios, Given) else scenarios
            looked_at = [_scenario(one) for one in several]
        self._scenarios = [] if self._function else looked_at
        self._at_capacity: dict[int, Scenario] = {}
        self.room = covering([scenario.fleet for scenario in looked_at])
        self.prompts = room_for_prompts(looked_at, requests)

    def draw(self, generator: np.random.Generator, options: dict[str, Any]) -> tuple[Scenario, Arrivals, int]:
        """The next episode: its scenario, requests, and the seed of all else.

        Args:
            generator: Of the environment.
            options: `scenario` and `load` hold for this episode in place of the environment's own.
        """
        if strange := options.keys() - {"scenario", "load"}:
            raise ValueError(f"reset option {min(strange)!r} is not known: give scenario or load")
        load: Load = options.get("load", self._load)
        if isinstance(load, tuple):
            load = float(generator.uniform(*load))
        _check_load(load)
        if "scenario" in options:
            scenario = _scenario(options["scenario"])
            scenario = scenario if load is None else scenario.with_load(load)
        else:
            scenario = self._one_of_ours(generator, load)
        _check_alike(self.room, scenario.fleet)
        seed = int(generator.integers(1 << 31))
        return scenario, scenario.arrivals(seed, self._requests), seed

    def _one_of_ours(self, generator: np.random.Generator, load: float | None) -> Scenario:
        if self._function is not None:
            drawn = self._function(generator)
            return drawn if load is None else drawn.with_load(load)
        i = int(generator.integers(len(self._scenarios)))
        if load is None:
            return self._scenarios[i]
        # The capacity is a linear program: solved once.
        if i not in self._at_capacity:
            self._at_capacity[i] = self._scenarios[i].with_load(1.0)
        workload = self._at_capacity[i].workload
        return dataclasses.replace(self._scenarios[i], workload=workload.at_rate(load * workload.rate_per_s))


def covering(fleets: Sequence[FleetSpec]) -> FleetSpec:
    """A fleet as large in everything as the largest of these, for which arrays are allocated; it never runs.

    Raises:
        ValueError: they differ in what environments of one batch share.
    """
    if not fleets:
        raise ValueError("scenario is an empty list: name at least one")
    for fleet in fleets:
        _check_alike(fleets[0], fleet)

    models = [model for fleet in fleets for model in fleet.models]
    count = max(len(fleet.models) for fleet in fleets)
    slots = max(sum(model.instances for model in fleet.models) for fleet in fleets)
    services = dict.fromkeys(service for model in models for service in model.service.values())
    generation = None
    if any(fleet.generates for fleet in fleets):
        most_tokens = max(model.table_sizes for model in models)
        generation = GenerationSpec({"*": GeneratingDevice(_ROOMY)}, most_tokens, max_sequences=1)
    model = ModelSpec(
        "model-0",
        {str(i): service for i, service in enumerate(services)},
        batching=BatchingSpec(
            max_batch_rows=max(model.batching.max_batch_rows for model in models),
            priority_levels=max(model.batching.priority_levels for model in models),
        ),
        instances=max(1, slots - count + 1),
        generation=generation,
    )
    others = (dataclasses.replace(model, name=f"model-{i}", instances=1, generation=None) for i in range(1, count))
    return FleetSpec(
        models=(model, *others),
        workers=tuple(SimulatedWorker(f"worker-{i}") for i in range(max(len(fleet.workers) for fleet in fleets))),
        balancers=max(fleet.balancers for fleet in fleets),
        reports=Reports(
            period_s=min(fleet.reports.period_s for fleet in fleets),
            delay_s=max(fleet.reports.delay_s for fleet in fleets),
            jitter_s=max(fleet.reports.jitter_s for fleet in fleets),
        ),
        faults=(Fault("silent", "worker-0", 0.0),) * max(len(fleet.faults) for fleet in fleets),
        cache=CacheSpec(entries=max(fleet.cache.entries for fleet in fleets)),
        retries=max(fleet.retries for fleet in fleets),
        settings=dataclasses.replace(
            fleets[0].settings,
            max_fallbacks=max(fleet.settings.max_fallbacks for fleet in fleets),
            sticky_keys=all(fleet.settings.sticky_keys for fleet in fleets),
        ),
    )


def room_for_prompts(scenarios: Sequence[Scenario], requests: int) -> PromptRoom:
    """For runs of these scenarios: a quarter more than what some of them have."""
    some = [
        scenario.arrivals(seed, requests) for scenario in scenarios if scenario.fleet.generates for seed in range(4)
    ]
    return PromptRoom(*(most + most // 4 for most in prompt_room(some)))


def _check_alike(first: FleetSpec, other: FleetSpec) -> None:
    """What the environments of a batch share must be alike in all fleets."""
    if _estimators(first) != _estimators(other):
        raise ValueError(f"settings.estimators differ: {_estimators(first)} and {_estimators(other)}; make them alike")


def _estimators(fleet: FleetSpec) -> Any:
    return dataclasses.replace(fleet.settings.estimators, profiles={})


def _check_load(load: float | None) -> None:
    if load is not None and not (isinstance(load, int | float) and 0 < load < float("inf")):
        raise ValueError(f"load is {load!r}: give a share of the fleet's capacity above 0, such as 0.8")


def _scenario(given: Given) -> Scenario:
    return given if isinstance(given, Scenario) else load_scenario(given)
