import numpy as np
import pytest
from unit.experiments.held_out.synthetic import SUBJECT, make_judged, make_scenario, with_answers

from experiments.held_out import findings
from experiments.held_out.plan import BASELINE, CLAIRVOYANT, WEIGHTED

GENERATOR = np.random.default_rng(3)
LEVELS = GENERATOR.uniform(1, 10, size=12)
"""Seeds differ much more than policies do."""


def compared(factor, name="unlike", **scenario):
    """The subject takes `factor` as long as the baseline, whatever the seed."""
    return make_judged({SUBJECT: LEVELS * factor, BASELINE: LEVELS}, make_scenario(name, **scenario))


def test_a_ratio_is_paired_by_seed():
    found = findings.ratio(compared(0.8), SUBJECT, BASELINE, "mean_s")
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.8, 0.8))


def test_medians_are_over_what_counts_and_the_worst_is_of_all():
    judged = [
        compared(0.7, "a"),
        compared(0.8, "b"),
        compared(0.85, "c"),
        compared(1.5, "alike", speeds=(1.0, 1.0)),
        compared(1.6, "keys", keys=True),
    ]
    lines = findings.bar(judged, SUBJECT)
    assert [(line.what, line.figure, line.against, line.limit) for line in lines] == [
        ("median", "mean_s", BASELINE, 0.9),
        ("median", "mean_s", WEIGHTED, 0.7),
        ("median", "p99_s", BASELINE, 1.0),
        ("median", "p99_s", WEIGHTED, 0.7),
        ("worst scenario", "mean_s", BASELINE, 1.03),
        ("worst scenario", "p99_s", BASELINE, 1.05),
    ]
    assert [line.found.value for line in lines] == pytest.approx([0.8, 0.8, 0.8, 0.8, 1.6, 1.6])
    assert [line.with_all.value for line in lines[:4]] == pytest.approx([0.85] * 4)
    assert [line.where for line in lines[4:]] == ["keys", "keys"]
    assert [line.met for line in lines] == [True, False, True, False, False, False]


@pytest.mark.parametrize(("factor", "met"), [(1.0299, True), (1.0301, False)])
def test_a_limit_is_met_by_the_ratio_itself(factor, met):
    worst_mean = findings.bar([compared(factor)], SUBJECT)[4]
    assert worst_mean.met == met


def test_a_policy_that_answers_nothing_is_the_worst_and_fails():
    judged = [compared(1.2, "slow"), with_answers(compared(0.5, "dead"), SUBJECT, 0.0)]
    worst = findings.bar(judged, SUBJECT)[4]
    assert worst.where == "dead"
    assert not worst.met


def test_answering_less_is_told():
    judged = with_answers(compared(0.5), SUBJECT, 0.98)
    assert findings.answers_less(judged, SUBJECT, BASELINE)
    assert not findings.answers_less(judged, BASELINE, SUBJECT)
    assert findings.failed(judged.board.policies[SUBJECT]) == pytest.approx(0.02)


def gap(ours, baseline, clairvoyant, name="unlike"):
    latencies = {SUBJECT: ours * LEVELS, BASELINE: baseline * LEVELS, CLAIRVOYANT: clairvoyant * LEVELS}
    return make_judged(latencies, make_scenario(name))


@pytest.mark.parametrize(("ours", "closed"), [(2.0, 0.0), (1.5, 0.5), (1.0, 1.0), (0.9, 1.1), (2.2, -0.2)])
def test_the_gap_closed_is_paired_by_seed_and_has_no_bounds(ours, closed):
    found = findings.gap_closed(gap(ours, 2.0, 1.0), SUBJECT, "mean_s")
    assert (found.value, found.low, found.high) == pytest.approx((closed, closed, closed))


def test_a_gap_too_small_to_speak_of_is_left_out_of_the_median():
    judged = [gap(0.9, 1.0, 0.98), gap(1.5, 2.0, 1.0), gap(1.3, 2.0, 1.0), gap(1.2, 2.0, 1.0)]
    assert findings.gap_closed(judged[0], SUBJECT, "mean_s") is None
    assert findings.median_gap_closed(judged, SUBJECT, "mean_s").value == pytest.approx(0.7)
    assert findings.median_gap_closed(judged[:1], SUBJECT, "mean_s") is None


def test_an_interval_holds_what_seeds_leave_open():
    noise = GENERATOR.normal(1.0, 0.1, size=12)
    judged = make_judged({SUBJECT: LEVELS * 0.8 * noise, BASELINE: LEVELS})
    found = findings.median_ratio([judged] * 3, SUBJECT, BASELINE, "mean_s")
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.2


def test_what_the_guard_did_and_cost():
    judged = make_judged({SUBJECT: LEVELS * 0.9, f"{SUBJECT}, no guard": LEVELS * 0.75, BASELINE: LEVELS})
    cost = findings.guard_cost(judged, SUBJECT)
    assert (cost.falls, cost.seeds_with_falls, cost.reasons) == (2, 1, {"range": 1, "late": 1})
    assert (cost.fallen, cost.by_baseline) == pytest.approx((0.2, 0.25))
    assert cost.mean.value == pytest.approx(1.2)
