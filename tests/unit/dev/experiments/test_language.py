"""Language models on drawn fleets: what is drawn can be run, who is tuned, what the page says of made-up results."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.results import make_result

from dev.experiments.language import __main__ as commands
from dev.experiments.language import page, rivals
from dev.experiments.language.distribution import scenario, warm_capacity_per_s
from dev.experiments.language.page import Opened
from dev.experiments.sealed.page import Provenance
from dev.experiments.sealed.rivals import points
from simulator.compare.metrics import RunMetrics, measure
from simulator.engine.check import check_arrivals, check_fleet

SCENARIOS = tuple(scenario(1, number) for number in range(4))
SEEDS = 3


def metrics(first_s: float, whole_s: float) -> RunMetrics:
    """Of runs in which all answers take so long."""
    shape = (SEEDS, 50)
    tokens = {f"{name}_tokens": np.full(shape, of) for name, of in (("prompt", 10), ("cached", 5), ("matched", 4))}
    return measure(make_result(np.full(shape, whole_s), first_s=np.full(shape, first_s), **tokens), 0.0)


def opened(first: float, whole: float) -> Opened:
    """All rivals take a second and ten; ours so much of it."""
    found = {name: [metrics(first, 10 * whole)] * len(SCENARIOS) for name in rivals.subjects()}
    found |= {name: [metrics(1.0, 10.0)] * len(SCENARIOS) for name in rivals.rivals()}
    return Opened(SCENARIOS, found, Provenance("a command", "a seed"))


@pytest.mark.parametrize("number", range(12))
def test_what_is_drawn_can_be_run_and_is_drawn_again(number: int) -> None:
    drawn = scenario(5, number)
    check_fleet(drawn.fleet)
    check_arrivals(drawn.fleet, drawn.arrivals(0, 500))
    assert scenario(5, number) == drawn


def test_a_fleet_that_computes_no_block_twice_can_do_more() -> None:
    drawn = [scenario(5, number) for number in range(12)]
    shared = [each for each in drawn if each.summary.startswith("shared prompts")]
    assert shared
    assert all(warm_capacity_per_s(each.fleet, each.workload) > 1.2 * each.capacity_per_s for each in shared)


def test_each_rule_is_tuned_for_each_goal_and_ours_as_well() -> None:
    names = {name for name, _ in rivals.rivals().values()}
    assert names == set(rivals.FIELD)
    for name in rivals.GRIDS:
        for goal in rivals.GOALS:
            assert rivals.read_tuned()[name]["chosen"][goal] in points(rivals.GRIDS[name])


def test_the_page_says_who_was_beaten_and_who_was_not() -> None:
    beaten = page.page(opened(0.5, 0.5))
    assert f"meets the aim against {len(rivals.rivals())} of {len(rivals.rivals())} rivals" in beaten
    assert "It loses to none in the median." in beaten
    assert "**0.50 (0.50 to 0.50)**" in beaten
    lost = page.page(opened(0.5, 1.5))
    assert f"meets the aim against 0 of {len(rivals.rivals())} rivals" in lost
    assert "It loses in the median: mean whole answer against `prefix_score`; p99 of it against" in lost
    assert "| expected_latency | 50.0% | 10.0% | 0.0% | 0.0% |" in lost


def test_the_csv_has_every_policy_in_every_scenario() -> None:
    lines = page.as_csv(opened(0.5, 0.5)).splitlines()
    assert len(lines) == 1 + len(SCENARIOS) * (len(rivals.subjects()) + len(rivals.rivals()))


def test_they_open_once(tmp_path: Path) -> None:
    there = tmp_path / "language_models.md"
    there.write_text("opened")
    found = CliRunner().invoke(commands.main, ["open", "--page", str(there)])
    assert found.exit_code == 1
    assert "they were opened" in found.output
