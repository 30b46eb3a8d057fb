"""Environments of one batch share nothing: each runs as it would alone."""

from __future__ import annotations

import numpy as np
import pytest
from simulation.builders import arrivals_of

from policies import BUILTIN
from simulator.run import run
from simulator.scenario import load_scenario


@pytest.mark.parametrize("compiled", [True, False])
def test_fleets_of_other_sizes_beside_change_nothing(compiled: bool) -> None:
    names = ["two-balancers", "four-balancers", "churn", "several-models", "priorities"]
    scenarios = [load_scenario(name) for name in names]
    fleets = [scenario.fleet for scenario in scenarios]
    arrivals = [scenario.arrivals(seed=1, requests=400) for scenario in scenarios]
    policy = BUILTIN["expected_latency"]()
    together = run(fleets, arrivals, policy, seeds=[7] * len(names), compiled=compiled)
    for e, (fleet, one) in enumerate(zip(fleets, arrivals, strict=True)):
        alone = run(fleet, [one], policy, seeds=[7], compiled=compiled)
        for field in ("picked", "worker", "status", "latency_s"):
            np.testing.assert_array_equal(getattr(together, field)[e], getattr(alone, field)[0], err_msg=names[e])


def test_what_does_not_fit_is_refused_by_name() -> None:
    fleet = load_scenario("homogeneous-steady").fleet
    with pytest.raises(ValueError, match="rows of request 0 is 1000: its model takes 1 to"):
        run(fleet, [arrivals_of([0.0], rows=[1000])], BUILTIN["random"]())
