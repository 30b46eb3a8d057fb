"""The table of zones: what is told of a run, and that it says what the simulator's zones do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments.by_hand import BEGIN, END
from experiments.zones.__main__ import BOUNDS_S, SCENARIO, Line, lines, main
from simulator.scenario import Scenario, load_scenario


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(SCENARIO)


@pytest.fixture(scope="module")
def found(scenario: Scenario) -> list[Line]:
    return lines(scenario, seeds=2, requests=3000)


def test_a_larger_bound_keeps_more_requests_in_their_zone(found: list[Line]) -> None:
    _, *bounds, _ = found
    at_the_edge = [line.shares["edge"] for line in bounds]
    assert len(bounds) == len(BOUNDS_S)
    assert at_the_edge == sorted(at_the_edge)
    assert at_the_edge[-1] == 1.0
    assert all(sum(line.shares.values()) == pytest.approx(1.0) for line in found)


def test_an_order_has_the_nearer_of_two_far_zones_take_more(found: list[Line]) -> None:
    (ordered,) = (line for line in found if line.setting == "`bound_s: 0.02`")
    assert ordered.shares["region"] > found[-1].shares["region"]
    assert ordered.shares["core"] < found[-1].shares["core"]


def test_ways_between_zones_take_the_time_that_the_fleet_says(scenario: Scenario) -> None:
    """One at a time, so nobody waits: what zones are for decides where the time goes."""
    quiet = replace(scenario, workload=scenario.workload.at_rate(1.0))
    ignored, *_, never, _ = lines(quiet, seeds=1, requests=500)
    assert never.p50_ms < ignored.p50_ms < never.p50_ms + 40.0
    far = ignored.shares["region"] + ignored.shares["core"]
    assert 0.6 < far < 0.9


def test_the_command_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    page = tmp_path / "zones.md"
    page.write_text(f"{BEGIN}\nWords.\n{END}\n")
    done = CliRunner().invoke(main, ["--seeds", "1", "--requests", "500", "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert "Words." in page.read_text()
    assert page.read_text().count("\n| ") == 1 + len(BOUNDS_S) + 2
