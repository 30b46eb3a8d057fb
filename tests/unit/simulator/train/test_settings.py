"""Settings by name."""

import dataclasses

import pytest

from simulator.train.settings import TrainingSettings, make_settings


def test_a_change_leaves_all_others_and_whole_numbers_are_taken_for_fractions() -> None:
    found = make_settings({"step": 1, "pairs": 7})
    assert found == dataclasses.replace(TrainingSettings(), step=1.0, pairs=7)
    assert isinstance(found, TrainingSettings)
    assert isinstance(found.step, float)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pears": 3}, "no setting 'pears'; did you mean \"pairs\"?"),
        ({"pairs": 3.5}, "pairs is 3.5: it must be a valid integer"),
        ({"pairs": True}, "pairs is True: it must be a valid integer"),
        ({"pairs": "many"}, "pairs is 'many': it must be a valid integer"),
        ({"pairs": 0}, "pairs is 0: it must be greater than or equal to 1"),
        ({"step": float("nan")}, "step is nan: it must be a finite number"),
        ({"tail_weight": "x"}, "tail_weight is 'x'"),
        ({"random_share": 1.5}, "random_share is 1.5: it must be less than or equal to 1"),
        ({"report_seeds": 1}, "report_seeds is 1: it must be greater than or equal to 2"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        make_settings(changes)
