"""Settings by name."""

from __future__ import annotations

import pytest

from simulator.train.pgpe import PgpeSettings
from simulator.train.settings import RunSettings, changed, flat_settings


def test_settings_of_parts_have_dotted_names_and_a_change_leaves_all_others() -> None:
    defaults = flat_settings(PgpeSettings())
    assert defaults["cost.tail"] == PgpeSettings().cost.tail
    found = flat_settings(changed(PgpeSettings(), {"cost.tail": 0.25, "pairs": 7}))
    assert found == defaults | {"cost.tail": 0.25, "pairs": 7}


def test_whole_numbers_are_taken_for_fractions() -> None:
    found = changed(PgpeSettings(), {"step": 1}).step
    assert found == 1.0
    assert isinstance(found, float)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pears": 3}, "no setting 'pears'; did you mean \"pairs\"?"),
        ({"pairs": 3.5}, "pairs is 3.5: it must be a valid integer"),
        ({"pairs": True}, "pairs is True: it must be a valid integer"),
        ({"pairs": "many"}, "pairs is 'many': it must be a valid integer"),
        ({"pairs": -1}, "pairs is -1: it must be greater than or equal to 1"),
        ({"pairs": 0}, "pairs is 0: it must be greater than or equal to 1"),
        ({"step": float("nan")}, "step is nan: it must be a finite number"),
        ({"cost.tail": "x"}, "tail is 'x'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        changed(PgpeSettings(), changes)


def test_settings_of_the_run_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"random_share is 1.5: it must be less than or equal to 1"):
        changed(RunSettings(), {"random_share": 1.5})
    with pytest.raises(ValueError, match="report_seeds is 1: it must be greater than or equal to 2"):
        changed(RunSettings(), {"report_seeds": 1})
