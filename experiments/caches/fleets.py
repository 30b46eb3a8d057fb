"""What is compared: the shipped scenarios with caches, and others beside them, with one balancer and with several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from simulator.scenario import Scenario, load_scenario
from simulator.workload.draws import Keys, ZipfKeys

SHIPPED = ("sessions", "cache-affinity")
LOADS = (0.8, 0.9, 0.95)
SEVERAL = (2, 4)
_OTHER_KEYS: dict[str, Keys] = {
    "a few hot keys": ZipfKeys(count=5000, exponent=1.3),
    "20 keys": ZipfKeys(count=20, exponent=0.5),
    "1,500 keys alike": ZipfKeys(count=1500, exponent=0.01),
}
_SMALL_SAVINGS = (0.1, 0.25)


class Case(NamedTuple):
    """A fleet under a load."""

    name: str
    scenario: Scenario

    @property
    def balancers(self) -> int:
        """That share the requests."""
        return self.scenario.fleet.balancers


def groups() -> dict[str, list[Case]]:
    """All cases, by the title of their table."""
    shipped = [load_scenario(name) for name in SHIPPED]
    return {
        "One balancer": [_at(one, load) for one in shipped for load in LOADS],
        "Several balancers": [_at(one, load, count) for one in shipped for count in SEVERAL for load in LOADS[::2]],
        "Where keys save nothing": [
            _at(_saving(one, 0.0), load, count) for one in shipped for count in (1, 4) for load in LOADS[::2]
        ],
        "Other keys, and small savings": list(_others(shipped)),
    }


def _others(shipped: list[Scenario]) -> Iterator[Case]:
    for name, keys in _OTHER_KEYS.items():
        base = load_scenario("cache-affinity")
        workload = replace(base.workload, keys=keys)
        for load in (0.6, 0.95):
            yield _at(replace(base, name=f"{base.name}, {name}", workload=workload), load)
    for saving in _SMALL_SAVINGS:
        for one in shipped:
            yield _at(_saving(one, saving), LOADS[-1])


def _at(scenario: Scenario, load: float, balancers: int = 1) -> Case:
    fleet = replace(scenario.fleet, balancers=balancers)
    return Case(f"{scenario.name}, load {load:g}", replace(scenario.with_load(load), fleet=fleet))


def _saving(scenario: Scenario, saving: float) -> Scenario:
    cache = replace(scenario.fleet.cache, saving=saving)
    name = f"{scenario.name}, a hit saves {100 * saving:.0f}%"
    return replace(scenario, name=name, fleet=replace(scenario.fleet, cache=cache))
