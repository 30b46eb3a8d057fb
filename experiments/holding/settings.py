"""What is compared: scenarios, and in each some ways to hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from balancer.core.settings import HeldModel, HoldingSettings, Limits, Order
from simulator.scenario import Scenario, load_scenario
from simulator.spec import FleetSpec

_HERE = Path(__file__).parent
PLACED = "placed at once"
"""The first of every group, by which the others are measured."""
_MINDS_NOBODY = "held, by deadline, window 1, `delayed_share: 0`"
BROKER_S = 0.001
"""What the way to one broker adds to each request."""

Change = Callable[[FleetSpec], FleetSpec]


@dataclass(frozen=True)
class Group:
    """Ways to place the requests of one scenario, on equal arrivals and seeds."""

    title: str
    scenario: Scenario
    ways: dict[str, Change]
    by_tenant: bool = False
    options: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of the policy, by way; where a way is not named the defaults."""
    least_requests: int = 0
    """Where it takes long until all want more than they get."""


def _same(fleet: FleetSpec) -> FleetSpec:
    return fleet


def holding(
    order: Order, window_batches: float, detour: float = 1.0, weights: dict[str, float] | None = None
) -> Change:
    """Requests to all models wait, in this order, until so many batches wait at a worker."""

    def change(fleet: FleetSpec) -> FleetSpec:
        models = {model.name: HeldModel(window_batches) for model in fleet.models}
        held = HoldingSettings(models, order, detour, max_s=300.0, max_requests=10_000, weights=weights or {})
        if weights is not None:
            held = replace(held, max_requests=1000)
        return replace(fleet, settings=replace(fleet.settings, holding=held, sticky_keys=False))

    return change


def _shedding(fleet: FleetSpec) -> FleetSpec:
    return replace(fleet, settings=replace(fleet.settings, limits=Limits(shed_late=True)))


def of_one_broker(change: Change) -> Change:
    """Where several balancers would, one does for all of them."""

    def changed(fleet: FleetSpec) -> FleetSpec:
        network = replace(fleet.network, to_worker_s=fleet.network.to_worker_s + BROKER_S)
        return change(replace(fleet, balancers=1, network=network))

    return changed


def _slow_to_tell(change: Change, outcome_s: float) -> Change:
    return lambda fleet: change(replace(fleet, network=replace(fleet.network, outcome_s=outcome_s)))


def _deadlines() -> list[Group]:
    ways = {
        PLACED: _same,
        "placed at once, `shed_late`": _shedding,
        "held, by arrival, window 1": holding("arrival", 1.0),
        "held, by deadline, window 1": holding("deadline", 1.0),
        "held, by deadline, window 2": holding("deadline", 2.0),
        _MINDS_NOBODY: holding("deadline", 1.0),
    }
    options = {_MINDS_NOBODY: {"delayed_share": 0.0}}
    scenario = _own("deadline-classes")
    return [
        Group(f"Two deadline classes in bursts, load {load:g}", scenario.with_load(load), ways, options=options)
        for load in (0.9, 1.2)
    ]


def _long() -> list[Group]:
    ways = {
        PLACED: _same,
        "held, window 1": holding("arrival", 1.0),
        "held, window 0": holding("arrival", 0.0),
        "held, window 0, detour 1.5": holding("arrival", 0.0, 1.5),
        "held, window 0, detour 2": holding("arrival", 0.0, 2.0),
        "held, window 0, detour without limit": holding("arrival", 0.0, inf),
    }
    several = {
        PLACED: _same,
        "held by each, window 0, detour 1.5": holding("arrival", 0.0, 1.5),
        "held by each, window 0, detour without limit": holding("arrival", 0.0, inf),
        "held by one broker, window 0, detour 1.5": of_one_broker(holding("arrival", 0.0, 1.5)),
    }
    scenario = _own("long-services")
    reports = replace(scenario.fleet.reports, period_s=0.2)
    four = replace(scenario, fleet=replace(scenario.fleet, balancers=4, reports=reports))
    return [
        *(Group(f"Long services, load {load:g}", scenario.with_load(load), ways) for load in (0.8, 0.9)),
        *(Group(f"Long services, four balancers, load {load:g}", four.with_load(load), several) for load in (0.8, 0.9)),
    ]


def _tenants() -> list[Group]:
    ways = {
        PLACED: _same,
        "held, by arrival": holding("arrival", 1.0, weights={}),
        "held, fair": holding("fair", 1.0, weights={}),
        "held, fair, weights 1 and 3": holding("fair", 1.0, weights={"few": 3.0}),
    }
    scenario = _own("tenants")
    fleet = replace(scenario.fleet, tenants=("many", "few"))
    return [
        Group(
            "Two tenants, one sends ten times as much",
            replace(scenario, fleet=fleet),
            ways,
            by_tenant=True,
            least_requests=20_000,
        )
    ]


def _others() -> list[Group]:
    held = holding("arrival", 1.0)
    ways = {PLACED: _same, "held, by arrival, window 1": held, "held, by deadline, window 1": holding("deadline", 1.0)}
    one = {**ways, "held, by arrival, outcomes 50 ms late": _slow_to_tell(held, 0.05)}
    steady, several = load_scenario("heterogeneous-steady"), load_scenario("several-models")
    return [
        Group("One model that batches, steady, load 0.9", steady.with_load(0.9), one),
        Group("Several models", several, ways),
    ]


def _own(name: str) -> Scenario:
    return load_scenario(_HERE / f"{name}.yaml")


def groups() -> list[Group]:
    """All that is compared."""
    return [*_deadlines(), *_long(), *_tenants(), *_others()]
