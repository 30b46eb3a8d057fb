import numpy as np

from experiments.live_fidelity.session import Session

SESSION = Session(policies=("wlpr", "prequal"), rounds=2, window_s=2.0, settle_s=0.5, pause_s=0.25, rate_per_s=50.0)


def test_every_policy_has_one_turn_a_round_and_none_begins_before_the_last_has_ended():
    turns = SESSION.turns()
    assert sorted((turn.round, turn.policy) for turn in turns) == [(r, p) for r in (0, 1) for p in ("prequal", "wlpr")]
    assert [turn.start_s for turn in turns] == [0.25, 3.0, 5.75, 8.5]
    assert all((turn.counted_s, turn.end_s) == (turn.start_s + 0.5, turn.start_s + 2.5) for turn in turns)


def test_turns_of_a_round_have_the_same_requests():
    workload, turn, turns = SESSION.workload(), SESSION.turn_of_requests(), SESSION.turns()
    assert set(turn) == {0, 1, 2, 3}
    columns = {
        i: np.stack(
            [workload.time_s[turn == i] - turns[i].start_s, workload.model[turn == i], workload.rows[turn == i]]
        )
        for i in range(4)
    }
    np.testing.assert_allclose(columns[0], columns[1], atol=1e-9)
    np.testing.assert_allclose(columns[2], columns[3], atol=1e-9)
    assert columns[0].shape != columns[2].shape or not np.allclose(columns[0], columns[2])
    assert all(columns[i][0].min() >= 0 and columns[i][0].max() < 2.5 for i in range(4))
