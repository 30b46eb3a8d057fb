"""What makes a scenario hard, read from its fleet and its requests; and so which of them the bar's medians are over."""

from __future__ import annotations

from simulator.scenario import Scenario
from simulator.spec import Reports
from simulator.workload.times import FlashCrowd
from tools.load.arrivals import Bursts

HETEROGENEOUS, BURSTY, STALE, BALANCERS, KEYS = (
    "heterogeneous", "bursty", "stale", "several balancers", "keys worth following",
)  # fmt: skip


def kinds(scenario: Scenario) -> tuple[str, ...]:
    """What the scenario is.

    Heterogeneous: workers of other devices or speeds. Bursty: bursts, a flash crowd, or a recorded trace. Stale:
    reports rarer than every 50 ms, or some lost. Keys worth following: a request is cheaper where its key was before.
    """
    fleet, workload = scenario.fleet, scenario.workload
    bursty = workload.recorded is not None or isinstance(workload.process, Bursts | FlashCrowd)
    found = {
        HETEROGENEOUS: len({(worker.device, worker.speed) for worker in fleet.workers}) > 1,
        BURSTY: bursty and not workload.clients,
        STALE: fleet.reports.period_s > Reports().period_s or fleet.reports.loss > 0,
        BALANCERS: fleet.balancers > 1,
        KEYS: fleet.cache.entries > 0,
    }
    return tuple(name for name, is_so in found.items() if is_so)


def counts(scenario: Scenario) -> bool:
    """Whether the bar's medians are over it too: any of the first four, and no keys worth following.

    Where keys are, most is won by going back to where a key was, of which `learned` is told nothing: another problem.
    """
    found = kinds(scenario)
    return bool(found) and KEYS not in found
