import pytest
from unit.experiments.live_fidelity.synthetic import PROFILES

from experiments.live_switchback.design import DESIGN, QUICK, capacity_weights


def test_weights_are_as_fast_as_workers_were_measured_to_be():
    weights = capacity_weights(PROFILES)
    # worker-0 takes half as long for a row; the mean worker weighs 1.
    assert weights == {"worker-0": pytest.approx(4 / 3, abs=1e-3), "worker-1": pytest.approx(2 / 3, abs=1e-3)}


@pytest.mark.parametrize("design", [DESIGN, QUICK])
def test_each_block_has_each_policy_once_in_changing_order_without_a_pause(design):
    turns = design.turns()
    blocks = [[turn.policy for turn in turns if turn.round == block] for block in range(design.rounds)]
    assert all(sorted(block) == sorted(design.policies) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    starts_s = [turn.start_s for turn in turns]
    assert [turn.end_s for turn in turns[:-1]] == pytest.approx(starts_s[1:])


def test_it_takes_six_minutes_and_a_trial_less_than_one():
    assert DESIGN.turns()[-1].end_s == pytest.approx(360.0)
    assert QUICK.turns()[-1].end_s < 45
    assert DESIGN.rounds >= 10
