"""Each algorithm gets the same, what was stopped ends as what was not, and the page says what came of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.two_workers import two_workers

from policies.expected_latency import ExpectedLatency
from simulator.scenario import load_scenario
from simulator.scoreboard import statistics
from simulator.spec import WorkerSpec
from simulator.training.pool import Here
from simulator.training.scenarios import Randomised
from simulator.training.validation import cases

pytest.importorskip("torch", reason="torch is not installed; make setup installs it")
pytest.importorskip("cmaes", reason="cmaes is not installed; make setup installs it")

from experiments import trained  # after the checks for torch and cmaes
from experiments.by_hand import NOTHING_YET
from experiments.optimizers import __main__ as command
from experiments.optimizers.algorithms import AGAINST, ALGORITHMS, AT_EQUAL_TIME, CMA_ES, PGPE, PPO
from experiments.optimizers.beside import DEFAULTS, SHIPPED, TUNED, beside
from experiments.optimizers.cma_es import CmaEs, CmaEsSettings
from experiments.optimizers.episodes import RANDOM, TRAIN, WRITTEN_ONES, judges
from experiments.optimizers.findings import BOTH, MEAN, P99, Found
from experiments.optimizers.options import SCALES, coordinates_of, policy_at
from experiments.optimizers.runs import Job, Judges, Training, run, shares
from experiments.sealed import rivals

TINY = CmaEsSettings(iterations=3, population=4, episodes=2, requests=40)


def near_tie() -> Randomised:
    """An idle fleet of two workers, one a quarter faster: who always takes that one is right."""
    draw = two_workers(0.1)
    (one,) = draw.shipped
    workers = (WorkerSpec("slow", speed=1.0), WorkerSpec("fast", speed=1.25))
    return replace(draw, shipped=(replace(one, fleet=replace(one.fleet, workers=workers)).with_load(0.1),))


def test_the_defaults_and_the_tuned_numbers_are_among_what_is_searched() -> None:
    for policy in (ExpectedLatency(), beside()[TUNED]):
        assert isinstance(policy, ExpectedLatency)
        assert policy_at(coordinates_of(policy)).options() == pytest.approx(policy.options())


def test_options_stay_within_bounds() -> None:
    least, most = policy_at(np.full(len(SCALES), -9.0)), policy_at(np.full(len(SCALES), 9.0))
    assert set(least.options().values()) == {0.0}
    assert most.options() == {name: scale.most for name, scale in SCALES.items()}
    dice = np.random.default_rng(0)
    for _ in range(200):
        options = policy_at(dice.normal(scale=3.0, size=len(SCALES))).options()
        assert all(0 <= options[name] <= scale.most for name, scale in SCALES.items())


def test_cma_es_searches_all_options_of_expected_latency() -> None:
    assert set(SCALES) == set(ExpectedLatency().options())


def test_cma_es_finds_the_number_where_it_is_known() -> None:
    start = ExpectedLatency(temperature=0.2)
    algorithm = CmaEs(replace(TINY, population=8, requests=100), near_tie(), 0, start)
    for _ in range(8):
        algorithm.iterate(Here())
    assert algorithm.policy.temperature < 0.06  # where one request in sixty goes to the slow one
    ours, before = (algorithm._costs([policy]) for policy in (algorithm.policy, start))
    assert ours < before - 0.03


def test_cma_es_finds_bounds_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(self: CmaEs, policies: list[ExpectedLatency]) -> np.ndarray:
        return np.array([each.temperature - each.behind_share + abs(each.delayed_share - 1.0) for each in policies])

    monkeypatch.setattr(CmaEs, "_costs", costs)
    algorithm = CmaEs(replace(TINY, population=12), two_workers(), 0)
    for _ in range(60):
        algorithm.iterate(Here())
    assert (algorithm.policy.temperature, algorithm.policy.behind_share) == (0.0, 1.0)
    assert algorithm.policy.delayed_share == pytest.approx(1.0, rel=0.02)


def test_cma_es_goes_on_as_if_it_had_not_stopped() -> None:
    straight, stopped = (CmaEs(TINY, two_workers(), 5) for _ in range(2))
    for _ in range(3):
        straight.iterate(Here())
    stopped.iterate(Here())
    resumed = CmaEs(TINY, two_workers(), 5)
    resumed.restore(stopped.state())
    for _ in range(2):
        resumed.iterate(Here())
    assert resumed.policy == straight.policy
    assert resumed.iteration == 3


@pytest.mark.parametrize("decisions", [500_000, 2_000_000, 8_000_000])
def test_every_algorithm_is_made_for_about_the_budget(decisions: int) -> None:
    for name, kind in ALGORITHMS.items():
        algorithm = kind.make(decisions, two_workers(), 4)
        planned = algorithm.settings.iterations * algorithm.decisions
        assert planned == pytest.approx(decisions, rel=0.05), name
        assert algorithm.settings.iterations >= 15, name


def test_all_start_as_expected_latency_with_its_defaults() -> None:
    for name, kind in ALGORITHMS.items():
        algorithm = kind.make(500_000, two_workers(), 0)
        if name == CMA_ES:
            assert algorithm.policy.options() == pytest.approx(ExpectedLatency().options())
        else:
            found = algorithm.network
            assert not any(part.any() for part in (found.out, found.mix, found.bias)), name


def test_what_is_judged_on_was_neither_trained_nor_tuned_on() -> None:
    made = judges(2, 3, 40)
    assert {title: len(each) for title, each in made.sets.items()} == {TRAIN: 3 * 14, RANDOM: 6, WRITTEN_ONES: 6}
    tuned_on = rivals.tuned_on()
    for case in made.sets[WRITTEN_ONES]:
        assert all(case.scenario.fleet != each.fleet for each in tuned_on)
    for each in made.sets.values():
        assert len({case.group for case in each}) * 3 == len(each)
        assert min(case.seed for case in each) >= 1 << 31  # training draws seeds below


def outcome(mean_s: list[float], p99_s: list[float]) -> dict[str, Any]:
    return {"judged": {"two": {"mean_s": mean_s, "p99_s": p99_s}}}


def test_ratios_are_geometric_means_over_trainings() -> None:
    sets = {"two": cases([load_scenario("mixed-sizes"), load_scenario("priorities")], 2, 0, 0)}
    found = Found(
        {
            PGPE: [outcome([1.0, 1.0, 2.0, 2.0], [4.0] * 4), outcome([4.0, 4.0, 8.0, 8.0], [4.0] * 4)],
            DEFAULTS: [outcome([1.0, 1.0, 2.0, 2.0], [1.0] * 4)],
        },
        sets,
    )
    assert found.ratio(PGPE, DEFAULTS, "two", MEAN).value == pytest.approx(2.0)
    assert found.ratio(PGPE, DEFAULTS, "two", P99).value == pytest.approx(4.0)
    assert found.ratio(PGPE, DEFAULTS, "two", BOTH).value == pytest.approx(4.0)
    assert found.by_training(PGPE, DEFAULTS, "two", MEAN) == pytest.approx([1.0, 4.0])


def test_at_equal_time_the_clock_is_read_once(tmp_path: Path) -> None:
    def spent(cpu_s: float) -> list[dict[str, float]]:
        return [{"cpu_s_of_a_decision": each} for each in (cpu_s, cpu_s, 100 * cpu_s)]

    measured = {AGAINST: spent(2e-5), PPO: spent(5e-5), CMA_ES: spent(4e-6)}
    assert shares(measured, tmp_path) == {PPO: 0.4, CMA_ES: 5.0}
    assert shares({AGAINST: spent(1.0), PPO: spent(1.0)}, tmp_path) == {PPO: 0.4, CMA_ES: 5.0}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    judged_on = Judges({"two": cases([load_scenario("two-balancers")], 2, 0, 900)}, 50)
    return Job("cma", Training(CMA_ES, 200_000, 0, two_workers()), judged_on, tmp_path)


def test_a_training_that_was_stopped_ends_as_one_that_was_not(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "straight").mkdir()
    straight = run(replace(job, folder=tmp_path / "straight"))
    monkeypatch.setattr(trained, "_SAVE_EVERY_S", -1.0)
    iterate, left = CmaEs.iterate, [2]

    def until_stopped(self: CmaEs, pool: Any) -> dict[str, float]:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return iterate(self, pool)

    monkeypatch.setattr(CmaEs, "iterate", until_stopped)
    with pytest.raises(KeyboardInterrupt):
        run(job)
    left[0] = 1000
    resumed = run(job)
    assert left[0] == 1000 - (straight["iterations"] - 2)
    for part in ("judged", "options", "decisions"):
        assert resumed[part] == straight[part]
    left[0] = 0  # what is done is not done again
    assert run(job) == resumed


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it with next to no budget; a second call finds all done."""
    folder = tmp_path_factory.mktemp("optimizers")
    made = invoked(folder)
    (folder / "first.md").write_bytes((folder / "page.md").read_bytes())
    assert "done" in made
    return folder


def invoked(folder: Path) -> str:
    options = {"--decisions": 8000, "--seeds": 2, "--scenarios": 2, "--request-seeds": 2, "--requests": 40}
    words = [*(str(word) for pair in options.items() for word in pair), "--kept", str(folder / "kept")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "Processes", lambda jobs: Here())
        patched.setattr(command, "trained_on", two_workers)
        patched.setattr(statistics, "RESAMPLES", 20)
        found = CliRunner().invoke(command.main, ["--page", str(folder / "page.md"), *words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_page_has_a_line_for_each_algorithm_at_each_budget(written: Path) -> None:
    text = (written / "page.md").read_text()
    for part in ("## Equal decisions", "## About equal time", "## What CMA-ES found", "## How it was done"):
        assert part in text
    for name in (TRAIN, RANDOM, WRITTEN_ONES):
        assert text.count(f"### {name}") == 2
    for kind in ALGORITHMS.values():  # once in each table of ratios, and in that of what was spent
        lines = [line for line in text.splitlines() if line.replace("*", "").startswith(f"| {kind.title} |")]
        assert len(lines) == 2 * (3 + 1)
    for name in (SHIPPED, DEFAULTS, TUNED):
        assert text.count(f"| *{name}* |") == 2 * 3
    assert "`temperature` 0, `delayed_share` 0.4, `delayed_share_other_models` 1, `behind_share` 1" in text
    for name in SCALES:
        assert f"| `{name}` |" in text


def test_the_numbers_are_beside_the_page(written: Path) -> None:
    told = json.loads((written / "page.json").read_text())
    for budget in told["budgets"].values():
        assert {name: len(each) for name, each in budget["spent"].items()} == dict.fromkeys(ALGORITHMS, 2)
        for each in budget["ratios"].values():
            assert each[DEFAULTS][f"{MEAN}/{DEFAULTS}"] == [1.0, 1.0, 1.0]
            assert each[AGAINST][f"{BOTH}/{AGAINST}"] == [1.0, 1.0, 1.0]
    equal, time = (told["budgets"][title]["spent"] for title in ("Equal decisions", "About equal time"))
    assert {name for name in ALGORITHMS if equal[name] == time[name]} >= set(ALGORITHMS) - set(AT_EQUAL_TIME)


def test_the_same_command_again_writes_the_same_page_and_keeps_words(written: Path) -> None:
    page = written / "page.md"
    first = (written / "first.md").read_text()
    assert "done" not in invoked(written)
    assert page.read_text() == first
    page.write_text(first.replace(NOTHING_YET, "PGPE it is."))
    invoked(written)
    assert page.read_text() == first.replace(NOTHING_YET, "PGPE it is.")
