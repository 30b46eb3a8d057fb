"""All that can simulate, so that tests of what holds in every run hold for each."""

from __future__ import annotations

from collections.abc import Callable

from simulation import reference

from policies.base import Policy
from simulator.arrivals import Arrivals
from simulator.result import Result
from simulator.run import run
from simulator.spec import FleetSpec

Simulate = Callable[[FleetSpec, Arrivals, Policy, int], Result]


def _engine(fleet: FleetSpec, arrivals: Arrivals, policy: Policy, seed: int) -> Result:
    return run(fleet, [arrivals], policy, seeds=[seed])


SIMULATORS: dict[str, Simulate] = {"reference": reference.simulate, "engine": _engine}
