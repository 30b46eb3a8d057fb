"""Sealed scenarios: what they are drawn from, who is tuned, what the verdict is of, and that they open once."""

import dataclasses
import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.results import make_result
from support.weights import write_weights

from balancer.scheduler.canary.guard import PolicyChange
from balancer.scheduler.canary.switchback import Finding
from dev.experiments.sealed import __main__ as commands
from dev.experiments.sealed import opening, page, rivals
from dev.experiments.sealed.opening import BARE, SUBJECT, Found, Opening, Watch
from policies import BUILTIN
from simulator.compare.metrics import RunMetrics, measure
from simulator.engine.check import check_arrivals, check_fleet
from simulator.scenario import Scenario, load_scenario
from simulator.spec import Reports
from simulator.train.distribution import (
    BALANCERS,
    DISTRIBUTION,
    DUE,
    FAULTS,
    KEYED,
    LONG,
    PLACES,
    SHARED,
    kinds,
    scenario,
)
from simulator.with_selector import BY_BASELINE, BY_POLICY, SelectedResult

PROVENANCE = page.Provenance("python -m dev.experiments.sealed open", "the hash of commit 0")
LEVELS = np.array([0.010, 0.012, 0.015])
FILE = "policy.npz"


def metrics(by_seed: Sequence[float], ok: float = 1.0) -> RunMetrics:
    """Of latencies in seconds, one a seed, so that mean and p99 are that; all but a share `ok` end in an error."""
    latency_s = np.repeat(np.asarray(by_seed, float)[:, None], 200, axis=1)
    status = np.zeros(latency_s.shape, np.int8)
    status[:, round(200 * ok) :] = 1
    return measure(make_result(latency_s, status=status), 0.0)


def made(ratios: Sequence[float], ok: float = 1.0, social: float = 0.5) -> tuple[Opening, list[Found]]:
    """Scenarios in which the subject has so much of every rival's latency, and answers a share `ok`."""
    drawn = opening.draw(1, len(ratios), len(LEVELS), rivals.read_tuned(), BUILTIN["wlpr"](), 200)
    watch = Watch(np.full(len(LEVELS), 0.25), np.array([2, 0, 0]), Counter(range=1, late=1))

    def of(given: Scenario, ratio: float) -> Found:
        found = {name: metrics(LEVELS.tolist()) for name in (*drawn.rivals, opening.CLAIRVOYANT, BARE)}
        found[opening.SOCIAL] = metrics((social * LEVELS).tolist())
        found[SUBJECT] = metrics((ratio * LEVELS).tolist(), ok)
        return Found(given, found, watch)

    return drawn, [of(given, ratio) for given, ratio in zip(drawn.scenarios, ratios, strict=True)]


def test_what_the_guard_did_is_counted_by_its_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = tuple(
        PolicyChange(at_s, fell, Finding(reason, ""), 10.0)
        for at_s, fell, reason in ((2.0, True, "range"), (5.0, False, "range"), (8.0, True, "late"))
    )
    decided = np.array([[BY_BASELINE, BY_POLICY, BY_POLICY, BY_POLICY], [BY_POLICY] * 4], np.int8)
    result = SelectedResult(make_result(np.ones((2, 4))), decided, (changes, ()))
    monkeypatch.setattr(opening, "run_with_selector", lambda *_, **__: result)
    (task,) = (each for each in made([1.0])[0].tasks() if each.way == "guarded")
    _, watch = opening.execute(task)
    assert watch is not None
    assert watch.by_baseline.tolist() == [0.25, 0.0]
    assert watch.falls.tolist() == [2, 0]
    assert watch.reasons == Counter(range=1, late=1)


def test_the_guard_misses_no_reports_that_come_as_often_as_the_fleet_says() -> None:
    given = load_scenario("homogeneous-steady")
    slow = dataclasses.replace(given.fleet.settings, stale_after_s=3.0)
    fleet = dataclasses.replace(given.fleet, reports=Reports(period_s=1.0), settings=slow)
    rare = dataclasses.replace(given, fleet=fleet)
    task = opening.Task(0, SUBJECT, rare, BUILTIN["wlpr"](), "guarded", (1, 2), 3000)
    _, watch = opening.execute(task)
    assert watch is not None
    assert not watch.reasons["reports"]


def test_intervals_are_over_scenarios_and_over_request_seeds() -> None:
    alike = page.together(np.log(np.full((9, 3), 0.8)))
    assert (alike.value, alike.low, alike.high) == pytest.approx((0.8, 0.8, 0.8))
    scenarios = page.together(np.log(np.linspace(0.5, 1.5, 9))[:, None] + np.zeros((9, 3)))
    seeds = page.together(np.zeros((2, 3)) + np.log([0.5, 1.0, 2.0]))
    for apart in (scenarios, seeds):
        assert apart.value == pytest.approx(1.0)
        assert apart.low < 0.9
        assert apart.high > 1.1


def test_equal_seeds_draw_equal_scenarios_and_all_are_sound() -> None:
    drawn = [scenario(5, number) for number in range(60)]
    for number, one in enumerate(drawn):
        check_fleet(one.fleet)
        check_arrivals(one.fleet, one.arrivals(0, 50))
        load = one.workload.rate_per_s / one.capacity_per_s
        assert DISTRIBUTION.load[0] <= load <= DISTRIBUTION.load[1]
        assert all(sum(worker.holds(model.name) for worker in one.fleet.workers) >= 2 for model in one.fleet.models)
        if number < 5:
            assert one.fleet == scenario(5, number).fleet
    assert drawn[0].fleet != scenario(6, 0).fleet
    assert {kind for one in drawn for kind in kinds(one)} >= {SHARED, LONG, KEYED, DUE, BALANCERS, FAULTS}
    assert {len(one.fleet.models) for one in drawn} == {1, 2, 3, 4, 5, 6}


def test_the_file_tells_the_numbers_that_are_drawn_from() -> None:
    assert commands.DISTRIBUTION.read_text() == page.distribution()
    assert 'models,"whole, uniform",1 to 6\n' in page.distribution()


def test_rivals_were_tuned_over_all_of_the_present_grid() -> None:
    tuned = rivals.read_tuned()
    for name, found in tuned["policies"].items():
        assert [each["settings"] for each in found["tried"]] == rivals.points(rivals.GRIDS[name])
        assert found["chosen"]["loss"] == min(each["loss"] for each in found["tried"])
    assert set(tuned["policies"]) == set(rivals.GRIDS)
    losses = {name: found["chosen"]["loss"] for name, found in tuned["policies"].items()}
    assert tuned["best"] == min(losses, key=losses.__getitem__)
    assert tuned["scenarios"] == [each.name for each in rivals.tuned_on()]


def test_tuning_takes_what_is_better_on_the_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "GRIDS", {"least_requests": {"choices": (1, 0)}})
    found = rivals.tune(("heterogeneous-steady",), requests=300, seeds=(0, 1))
    assert found["policies"]["least_requests"]["chosen"]["settings"] == {"choices": 0}


def is_mixed(one: Scenario) -> bool:
    return len({worker.device for worker in one.fleet.workers}) > 1


def test_weights_are_capacities_where_a_rival_is_told_them() -> None:
    weighted = rivals.rival("wlpr", {"count_self": True, "weights_are_capacities": True})
    given = next(one for one in (scenario(5, number) for number in range(9)) if is_mixed(one))
    assert {worker.weight for worker in given.fleet.workers} == {1.0}
    assert len({worker.weight for worker in weighted.scenario(given).fleet.workers}) > 1
    assert weighted.policy.options() == {"count_self": True}


@pytest.mark.parametrize(
    ("ratios", "ok", "met"),
    [
        ([0.7] * 5, 1.0, [True, True, True]),
        ([0.88] * 5, 1.0, [False, True, True]),
        ([0.7] * 5, 0.95, [True, True, False]),
        ([0.7, 0.7, 0.7, 1.4, 1.5], 1.0, [False, False, True]),  # the median is low, and its interval is not
    ],
)
def test_the_verdict_is_of_ratios_intervals_and_failures(ratios: list[float], ok: float, met: list[bool]) -> None:
    drawn, found = made(ratios, ok)
    assert [line.met for line in page.verdict(drawn, found)] == met
    assert ("NOT met" not in page.summary(drawn, found)) == all(met)


def test_who_answers_nothing_is_the_slowest() -> None:
    drawn, found = made([0.7] * 3, ok=0.0)
    assert page.median_ratio(found, drawn.best, "mean_s").value > 1e6


def test_the_page_says_what_the_subject_adds_and_how_far_the_social_reference_is() -> None:
    drawn, found = made([0.7] * 4)
    text = page.page(drawn, found, PROVENANCE)
    places = {kind for one in found for kind in kinds(one.scenario) if kind in PLACES}
    same = "0.700 (0.700 to 0.700)"
    assert f"has {same} times the mean and {same} times the p99 of `expected_latency, tuned`" in text
    assert f"| **expected_latency, tuned** | {same} | {same} | 0.0% |" in text
    assert "the rival's is 2.00 times" in text
    assert sum(f"| {place} | " in text for place in places) == len(places) > 0
    assert " nan" not in text


def test_numbers_have_every_seed_of_every_policy() -> None:
    drawn, found = made([0.7] * 2)
    document = page.as_json(drawn, found, PROVENANCE)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    of_first = document["scenarios"][0]["policies"]
    assert of_first["learned"]["mean_s"] == pytest.approx((0.7 * LEVELS).tolist())
    assert set(of_first) == {"learned", "learned, no guard", *drawn.rivals, *opening.REFERENCES}
    lines = page.as_csv(drawn, found).splitlines()
    assert len(lines) == 1 + 2 * len(of_first)


def test_all_runs_of_a_scenario_meet_the_same_requests() -> None:
    drawn = opening.draw(1, 2, 3, rivals.read_tuned(), BUILTIN["wlpr"](), 40)
    tasks = list(drawn.tasks())
    assert len({(task.seeds, task.requests) for task in tasks}) == 1
    assert {task.label for task in tasks if task.way == "guarded"} == {"learned"}
    assert len({(task.scenario.name, task.label) for task in tasks}) == len(tasks)


@pytest.fixture(name="repository")
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own, and no runs: what would be judged is kept instead."""
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    (tmp_path / "file").write_text("content")
    write_weights(tmp_path / FILE)
    git("add", ".")
    git("commit", "--quiet", "--message", "Seal")
    return tmp_path


def git(*words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()


def test_the_seed_is_of_the_commit_and_known_to_nobody_before(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Opening] = []
    monkeypatch.setattr(commands, "_judge", lambda drawn, *_, **__: judged.append(drawn))
    done = CliRunner().invoke(commands.main, ["open", "--file", FILE])
    assert done.exit_code == 0, done.output
    (drawn,) = judged
    assert drawn.seed == opening.seed_of(git("rev-parse", "HEAD")) != opening.seed_of("another")
    assert len(drawn.scenarios) == commands.SCENARIOS >= 20


def test_what_is_not_committed_seals_nothing(repository: Path) -> None:
    (repository / "file").write_text("changed")
    refused = CliRunner().invoke(commands.main, ["open", "--file", FILE])
    assert refused.exit_code == 1
    assert "not all is committed" in refused.output


def test_they_open_once(repository: Path) -> None:
    commands.PAGE.parent.mkdir(parents=True)
    commands.PAGE.write_text("opened")
    refused = CliRunner().invoke(commands.main, ["open", "--file", FILE])
    assert refused.exit_code == 1
    assert "they were opened" in refused.output
    assert commands.PAGE.read_text() == "opened"


@pytest.mark.long
def test_a_rehearsal_does_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_weights(tmp_path / FILE)
    monkeypatch.setattr(
        rivals,
        "read_tuned",
        lambda: {"best": "wlpr", "policies": {"wlpr": {"chosen": {"settings": {"weights_are_capacities": True}}}}},
    )
    monkeypatch.setattr(rivals, "DEFAULTS", ("expected_latency",))
    words = (
        "rehearse",
        "--file",
        FILE,
        "--seed",
        "1",
        "--scenarios",
        "2",
        "--seeds",
        "2",
        "--requests",
        "60",
        "--jobs",
        "1",
    )
    done = CliRunner().invoke(commands.main, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "sealed.json").read_text())
    assert document["against"] == "wlpr, tuned"
    assert len(document["scenarios"][0]["policies"]["social"]["mean_s"]) == 2
    text = (tmp_path / "sealed.md").read_text()
    assert " ".join(words[:5]) in text
    assert document["rivals"]["wlpr, tuned"] == {"options": {"count_self": True}, "weights_are_capacities": True}
    assert set(document["scenarios"][0]["guard"]) == {"falls", "reasons", "by_baseline"}
