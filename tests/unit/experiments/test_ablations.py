"""What is taken away is really gone, and every variant is trained and judged alike, in one go or in pieces."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.two_workers import two_workers

from policies.base import Request
from policies.learned.features import FEATURES, TERMS
from policies.learned.policy import shares
from simulator.batch import Batch
from simulator.scenario import load_scenario
from simulator.training.arena import Arena
from simulator.training.pgpe import Pgpe, PgpeSettings
from simulator.training.pool import Here
from simulator.training.scenarios import Randomised
from simulator.training.validation import cases

pytest.importorskip("torch", reason="torch is not installed; make setup installs it")

from experiments import trained  # after the check for torch
from experiments.ablations.fixed_size import fixed_from_flat, fixed_initial
from experiments.ablations.gradients import Effort, measure, signal_to_noise
from experiments.ablations.pgpe import AblatedPgpe
from experiments.ablations.report import page, ratio_over
from experiments.ablations.runs import Job, run
from experiments.ablations.switches import Ablation, Look
from experiments.ablations.variants import EXPECTED, FULL, VARIANTS, WLPR, Budget, make
from experiments.ablations.views import AsReported, OpenBatchView

TINY = PgpeSettings(iterations=3, coefficients_share=0.0, pairs=4, requests=40, hidden=2, tasks=1)
FOUR_BALANCERS = load_scenario("four-balancers")


def stepped(batch: Batch, view: Any) -> None:
    batch.step(np.where(view.eligible, view.pending, np.inf).argmin(axis=1))


def test_without_knowing_what_executes_a_batch_takes_in_what_comes() -> None:
    arena = Arena(Randomised((load_scenario("heterogeneous-bursty"),), random_share=0.0, load=(1.0, 1.0)), 1, 200)
    arena.load(0, np.random.default_rng(0))
    joined = 0
    while arena.batch.waiting.any():
        seen = arena.batch.view()
        open_ = OpenBatchView(seen)
        (alone,) = np.nonzero(seen.in_flight[0] == 1)
        # A single request executes: what comes needs a batch of its own, or, if that is not known, a row more.
        assert (seen.completion_s - seen.backlog_s)[0, alone] == pytest.approx(seen.service_s[0, alone])
        assert ((open_.completion_s - open_.backlog_s)[0, alone] < seen.service_s[0, alone]).all()
        joined += len(alone)
        stepped(arena.batch, seen)
    assert joined > 10


def test_without_dead_reckoning_others_are_as_last_reported() -> None:
    """Between two reports of a worker, what others have there does not change, while the real view's does."""
    arena = Arena(Randomised((FOUR_BALANCERS,), random_share=0.0, load=(1.0, 1.0)), 2, 200)
    for e in range(2):
        arena.load(e, np.random.default_rng(e))
    as_reported = AsReported()
    last: dict[tuple[int, int, int], tuple[float, float]] = {}
    kept = moved = 0
    while arena.batch.waiting.any():
        seen = arena.batch.view()
        view = as_reported(seen)
        others = view.pending - view.in_flight
        reported_at = arena.batch.now_s[:, None] - seen.report_age_s
        balancer = arena.batch.sim.asked.balancer
        for e in np.flatnonzero(arena.batch.waiting):
            for w in range(others.shape[1]):
                key, now = (e, int(balancer[e]), w), (float(reported_at[e, w]), float(others[e, w]))
                before = last.get(key)
                if before is not None and before[0] == pytest.approx(now[0], abs=1e-9):
                    assert before[1] == pytest.approx(now[1])
                    kept += 1
                    moved += int(seen.pending[e, w] - seen.in_flight[e, w] != pytest.approx(now[1]))
                last[key] = now
        stepped(arena.batch, seen)
    assert kept > 100
    assert moved > 100


def test_without_the_prior_expected_cost_is_not_in_the_score() -> None:
    arena = Arena(two_workers(), 1, 20)
    arena.load(0, np.random.default_rng(0))
    arena.batch.step(np.array([0]))
    view, request = arena.batch.view(), Request("m")
    assert Look(Ablation())(request, view).relative_cost.max() > 0
    assert Look(Ablation(prior=False))(request, view).relative_cost.max() == 0


def test_coefficients_move_first_and_alone() -> None:
    algorithm = Pgpe(dataclasses.replace(TINY, coefficients_share=0.7), two_workers(), seed=0)
    moved = []
    for _ in range(3):
        before = algorithm.network._asdict()
        algorithm.iterate(Here())
        after = algorithm.network._asdict()
        moved.append({name for name in after if not np.array_equal(before[name], after[name])})
    assert moved == [{"bias", "beta"}, {"bias", "beta"}, set(before)]


def test_with_all_iterations_for_the_coefficients_nothing_else_moves() -> None:
    algorithm = Pgpe(dataclasses.replace(TINY, coefficients_share=1.0), two_workers(), seed=0)
    before = algorithm.network._asdict()
    for _ in range(TINY.iterations):
        algorithm.iterate(Here())
    after = algorithm.network._asdict()
    assert {name for name in after if not np.array_equal(before[name], after[name])} == {"bias", "beta"}


@pytest.mark.parametrize(
    ("ablation", "moved"),
    [
        (Ablation(), {"w1", "b1", "w2", "context", "b2", "out", "mix", "bias", "beta"}),
        (Ablation(prior=False), {"out", "bias", "beta", "w1"}),
        (Ablation(dead_reckoning=False), {"out", "bias", "beta", "w1"}),
        (Ablation(executing_known=False), {"out", "bias", "beta", "w1"}),
        (Ablation(common_random_numbers=False), {"out", "bias", "beta", "w1"}),
        (Ablation(symmetric=False), {"out", "bias", "beta", "w1"}),
        (Ablation(fixed_workers=3), {"w1", "b1", "w2", "beta"}),
    ],
    # A set is not written in the same order by every process.
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_every_ablation_trains_what_it_should(ablation: Ablation, moved: set[str]) -> None:
    algorithm = AblatedPgpe(TINY, two_workers(), 0, ablation)
    before = algorithm.network._asdict()
    algorithm.iterate(Here())
    after = algorithm.network._asdict()
    changed = {name for name in after if not np.array_equal(before[name], after[name])}
    assert moved <= changed


def test_a_network_of_fixed_size_tells_workers_apart() -> None:
    generator = np.random.default_rng(0)
    vector = fixed_initial(generator, hidden=4, workers=3, beta=5.0)
    vector[:-1] += generator.normal(size=len(vector) - 1)
    network = fixed_from_flat(vector, 4, 3)
    features, terms = generator.random((2, 5, len(FEATURES))), generator.random((2, 5, len(TERMS)))
    term = network.term(features, terms, np.ones((2, 5), np.bool_))
    assert (term[:, 3:] == 0).all()
    swapped = network.term(features[:, [1, 0, 2, 3, 4]], terms[:, [1, 0, 2, 3, 4]], np.ones((2, 5), np.bool_))
    assert not np.allclose(swapped[:, [1, 0, 2, 3, 4]], term)
    # Many networks side by side are each of them by itself.
    both = fixed_from_flat(np.stack([vector, 2 * vector]), 4, 3).term(features, terms, np.ones((2, 5), np.bool_))
    assert both[0] == pytest.approx(term[0])
    fewer = network.term(features[:, :2], terms[:, :2], np.ones((2, 2), np.bool_))
    assert fewer.shape == (2, 2)
    arena = Arena(two_workers(), 1, 5)
    arena.load(0, np.random.default_rng(0))
    view = arena.batch.view()
    assert shares(network, Look(Ablation())(Request("m"), view), view).sum() == pytest.approx(1)  # type: ignore[arg-type]  # has all that is needed


def test_every_variant_is_made_for_about_the_budget() -> None:
    budget = Budget(2_000_000, seed=4)
    for name, variant in VARIANTS.items():
        if variant.policy is None:
            algorithm = make(variant, budget, two_workers())
            planned = algorithm.settings.iterations * algorithm.decisions
            assert planned == pytest.approx(budget.decisions, rel=0.1), name


@pytest.fixture
def job(tmp_path: Path) -> Job:
    scenario = load_scenario("two-balancers")
    sets = {"two": cases([scenario], 3, 0, 900), "random": cases((), 0, 3, 950)}
    return Job("tuned", Budget(48_000), two_workers(), sets, 50, tmp_path)


def test_a_variant_that_was_stopped_ends_as_one_that_was_not(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "at_most", lambda *_: 2)
    (tmp_path / "straight").mkdir()
    straight = run(dataclasses.replace(job, folder=tmp_path / "straight"))
    stopped = dataclasses.replace(job, folder=tmp_path / "stopped")
    stopped.folder.mkdir()
    monkeypatch.setattr(trained, "_SAVE_EVERY_S", -1.0)
    iterate, left = Pgpe.iterate, [2]

    def until_stopped(self: Pgpe, pool: Any) -> dict[str, float]:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return iterate(self, pool)

    monkeypatch.setattr(Pgpe, "iterate", until_stopped)
    with pytest.raises(KeyboardInterrupt):
        run(stopped)
    assert not (stopped.folder / "tuned.json").exists()
    left[0] = 1000
    resumed = run(stopped)
    assert left[0] == 1000 - 4  # of 6 iterations
    assert resumed["judged"] == straight["judged"]
    assert resumed["decisions"] == straight["decisions"] == 48_000
    left[0] = 0  # what is done is not done again
    assert run(stopped) == resumed


def test_a_set_that_is_asked_for_later_is_judged_without_training_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "at_most", lambda *_: 2)
    first = run(job)
    monkeypatch.setattr(Pgpe, "iterate", None)
    later = {**job.sets, "later": cases([load_scenario("mixed-sizes")], 2, 0, 990)}
    second = run(dataclasses.replace(job, sets=later))
    assert set(second["judged"]) == {"two", "random", "later"}
    assert second["judged"]["two"] == first["judged"]["two"]


def test_ratios_are_over_seeds_and_scenarios_count_alike() -> None:
    named = cases([load_scenario("mixed-sizes"), load_scenario("priorities")], 3, 0, 0)
    logarithms = np.log([1.0, 1.0, 1.0, 4.0, 4.0, 4.0])
    assert ratio_over(logarithms, named).value == pytest.approx(2.0)
    assert ratio_over(logarithms, named).low == pytest.approx(2.0)  # the same with every seed
    by_itself = ratio_over(np.log([1.0, 4.0, 2.0]), cases((), 0, 3, 0))
    assert by_itself.value == pytest.approx(2.0)
    assert by_itself.low < 2.0 < by_itself.high


def test_the_page_has_a_line_for_each_variant_and_the_ratios(job: Job) -> None:
    outcomes = {name: run(dataclasses.replace(job, name=name)) for name in (EXPECTED, WLPR)}
    half = json.loads(json.dumps(outcomes[EXPECTED]))
    half["judged"]["two"]["mean_s"] = [value / 2 for value in half["judged"]["two"]["mean_s"]]
    text = page({FULL: half, **outcomes}, job.sets, {}, "the command")
    assert "`the command`" in text
    for name in (FULL, EXPECTED, WLPR):
        assert f"| {VARIANTS[name].title} |" in text
    first = next(line for line in text.splitlines() if line.startswith(f"| {VARIANTS[FULL].title} |"))
    assert first.split("|")[2].strip() == "0.500"


def test_signal_to_noise_is_that_of_a_sample() -> None:
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(20_000, 2))
    # A mean of length 1 beside two variances of 1.
    assert signal_to_noise(noise + np.array([0.6, 0.8])) == pytest.approx(1 / np.sqrt(2), rel=0.05)
    assert signal_to_noise(noise) < 0.02


def test_estimates_of_the_gradient_are_measured_one_by_one() -> None:
    rows = measure(two_workers(0.8), Effort(pairs=48, episodes=48, requests=60))
    assert len({row.title for row in rows}) == len(rows) == 14
    assert rows[0].cosine == pytest.approx(1)
    assert all(np.isfinite([row.ratio, row.low, row.high, row.cosine, row.samples_per_s]).all() for row in rows)
