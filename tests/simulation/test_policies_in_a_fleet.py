"""What each policy must achieve in a small fleet: same arrivals for all, seeds fixed, differences large."""

from __future__ import annotations

import numpy as np
import pytest
from simulation.fleet import simulate

from policies import BUILTIN

HETEROGENEOUS = (1.0, 1.0, 2.0, 4.0)
# The slowest serves 8 rows in 26 ms, so all together some 2,460 rows a second.
BUSY_PER_S = 1500.0


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_policy_serves_every_request(name: str) -> None:
    assert np.isfinite(simulate(BUILTIN[name](), HETEROGENEOUS, 300.0, requests=1000)).all()


@pytest.mark.parametrize("balancers", [1, 3])
def test_expected_latency_beats_the_load_blind_and_the_speed_blind(balancers: int) -> None:
    mean_ms = {
        name: 1e3 * simulate(BUILTIN[name](), HETEROGENEOUS, BUSY_PER_S, balancers=balancers).mean()
        for name in ("round_robin", "random", "least_requests", "wlpr", "power_of_two", "expected_latency")
    }
    best = mean_ms.pop("expected_latency")
    assert best < 0.9 * min(mean_ms.values()), mean_ms


def test_least_requests_uses_a_homogeneous_fleet_evenly_and_beats_random() -> None:
    least, random = (simulate(BUILTIN[n](), (1.0,) * 4, 600.0).mean() for n in ("least_requests", "random"))
    assert least < random
