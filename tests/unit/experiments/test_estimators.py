"""Estimates of two trees: the fleets that they are measured on, and the page that joins what was found."""

import numpy as np
import pytest

from experiments.estimators.fleets import random_fleet, three_models, three_models_shared_by_balancers
from experiments.estimators.measure import measure
from experiments.estimators.page import page
from experiments.estimators.whole import measure_held, measure_social
from policies import BUILTIN
from simulator.engine.check import check_fleet


def test_equal_seeds_draw_equal_fleets_and_all_are_sound() -> None:
    fleets = [random_fleet(seed) for seed in range(20)]
    for seed, scenario in enumerate(fleets):
        check_fleet(scenario.fleet)
        assert scenario == random_fleet(seed)
    assert len({len(scenario.fleet.models) for scenario in fleets}) > 1
    assert fleets[0] != fleets[1]


def test_each_of_the_three_models_is_a_third_of_the_work() -> None:
    for scenario in three_models():
        seconds = {model.name: model.service["*"].device_s[0] for model in scenario.fleet.models}
        work = [each.share * seconds[each.name] for each in scenario.workload.traffic]
        assert work == pytest.approx([work[0]] * 3)


def test_balancers_share_the_same_fleets() -> None:
    alone = {scenario.name: scenario for scenario in three_models()}
    for scenario in three_models_shared_by_balancers():
        name, balancers = scenario.name.rsplit(", ", 1)
        assert balancers == f"{scenario.fleet.balancers} balancers"
        assert scenario.fleet.workers == alone[name].fleet.workers


def test_what_is_expected_of_a_request_is_held_against_what_it_took() -> None:
    found = measure(random_fleet(0), BUILTIN["expected_latency"](), range(2), 300)
    assert np.shape(found["mean_s"]) == np.shape(found["real_over_expected"]) == (2,)
    assert all(0.2 < each < 5 for each in found["real_over_expected"])
    assert all(tail >= mean > 0 for mean, tail in zip(found["mean_s"], found["p99_s"], strict=True))


def told(mean_s: float, expected: float) -> dict[str, object]:
    one = {"load": 0.7, "mean_s": [mean_s] * 2, "p99_s": [0.4, 0.4], "real_over_expected": [expected] * 2}
    return {"policy": "p", "command": "measure", "found": {"group": {"one": one}}}


def test_the_page_joins_run_by_run_and_marks_what_is_badly_expected() -> None:
    made = page(told(0.2, 1.7), told(0.1, 0.9), [], words="Mine.", title="T")
    assert "| Group | 1 | 0.500 (0.500 to 0.500) | 0.500 | 1.000 (1.000 to 1.000) | 1.000 |" in made
    assert "| one | 0.70 | 100.0 | 0.500 | 400 | 1.000 | **1.70** | 0.90 |" in made
    assert "Mine." in made


def test_another_policy_stands_beside_by_the_same_measure() -> None:
    made = page(told(0.2, 1.7), told(0.1, 0.9), [{**told(0.05, float("nan")), "policy": "q"}], words="Mine.", title="T")
    assert "## What `q` does there" in made
    assert "| Group | 1 | 0.250 (0.250 to 0.250) | 0.250 | 1.000 (1.000 to 1.000) | 1.000 |" in made


def test_the_reference_and_requests_that_wait_are_measured_on_the_same_requests() -> None:
    scenario = random_fleet(0)
    found = measure(scenario, BUILTIN["expected_latency"](), range(2), 300)
    for other in (
        measure_social(scenario, range(2), 300),
        measure_held(scenario, scenario.fleet, range(2), 300),
    ):
        assert other["load"] == found["load"]
        assert np.isnan(other["real_over_expected"]).all()
        assert other["mean_s"] == pytest.approx(found["mean_s"], rel=0.5)
