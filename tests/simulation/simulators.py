"""All that can simulate, so that tests of what holds in every run hold for each."""

from __future__ import annotations

from collections.abc import Callable

from simulation import reference

from policies.base import Policy
from simulator.arrivals import Arrivals
from simulator.result import Result
from simulator.spec import FleetSpec

Simulate = Callable[[FleetSpec, Arrivals, Policy, int], Result]

SIMULATORS: dict[str, Simulate] = {"reference": reference.simulate}
