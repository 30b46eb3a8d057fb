"""What the page says of results, and that a fleet's are worked out once."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dev.experiments.own_fleet import fleet, page
from dev.experiments.own_fleet.fleet import LABELS, Fleet
from simulator.train.distribution import NEVER_SEALED


def result(
    name: str,
    trained: float,
    p99: float = 0.9,
    models: int = 3,
    differs: tuple[str, ...] = (),
    generates: bool = False,
    refused: str | None = None,
) -> dict[str, Any]:
    ratios = {label: [1.0, 1.0] for label in LABELS} | {"trained": [trained, p99], "numbers": [0.9, 0.95]}
    told = {"name": name, "models": models, "workers": 4, "balancers": 1, "keys": True, "faults": ["slow", "slow"]}
    told["hidden_work"] = False
    ratios |= {"least_tokens": [1.3, 1.2]} if generates else {}
    return {
        "fleet": {**told, "generates": generates},
        "first_tokens": {label: [0.7, 0.6] if generates else [] for label in ratios},
        "differs": list(differs),
        "twin": {},
        "refused": refused,
        "nothing_to_gain": False,
        "gain_in_twin": [0.8, 0.7, 0.9],
        "train_s": 90,
        "by_baseline": 0.05,
        "guard_saw": {"inputs": 2},
        "ratios": ratios,
        "unanswered": dict.fromkeys(LABELS, 0.0),
    }


RESULTS = [
    result("s00", 0.8),
    result("s01", 0.84),
    result("s02", 0.9, differs=("p50 of m is off",)),
    result("s03", 1.1, models=1, refused="no such log"),
]


def test_aims_are_of_several_models_and_no_fleet_may_lose() -> None:
    text = page.page(RESULTS, "the command", "7")
    assert "- mean at most 0.85: 0.840, met" in text
    assert "- p99 at most 0.95: 0.900, met" in text
    assert "- mean over tuned once at most 0.9: 0.840, met" in text
    assert "- no fleet worse than 1.02: 1.100, **missed**" in text
    assert "lower by more than 2% in 2 of 3 fleets" in text
    assert "3 of 4 fleets made of their logs are twins" in text
    assert "| s02 | p50 of m is off |" in text
    assert "Of 1 logs it made nothing" in text
    assert "| s03 | refused: no such log |" in text


def test_what_fails_more_is_no_gain() -> None:
    fails = RESULTS[0] | {"unanswered": RESULTS[0]["unanswered"] | {"trained": 0.02}}
    assert "is no gain" not in page.page(RESULTS, "", "")
    assert "- s00 is no gain: 2.00% of its requests are not answered, for 0.00%" in page.page([fails], "", "")


def test_kinds_of_fleets_are_told_apart() -> None:
    text = page.page(RESULTS, "", "")
    assert "| several models | 3 | 0.840 (0.800 to 0.900) | 0.900 (0.900 to 0.900) | 3 of 3 | 0.900 |" in text
    assert "| one model | 1 | 1.100 (1.100 to 1.100) | 0.900 (0.900 to 0.900) | 0 of 1 | 1.100 |" in text
    assert "no such keys" not in text


def test_every_fleet_is_in_the_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(page.fleets_csv(RESULTS))))
    assert [(row["fleet"], row["twin"], row["trained mean"]) for row in rows[:3]] == [
        ("s00", "yes", "0.8000"),
        ("s01", "yes", "0.8400"),
        ("s02", "no", "0.9000"),
    ]
    assert (rows[3]["trained, no guard mean"], rows[3]["guard saw"], rows[3]["train_s"]) == ("1.0000", "inputs", "90")


def test_language_models_are_told_of_by_first_tokens_too() -> None:
    assert "## Language models" not in page.page(RESULTS, "", "")
    text = page.page([*RESULTS, result("l03", 0.95, models=1, generates=True)], "", "")
    once = "{0:.3f} ({0:.3f} to {0:.3f})".format
    assert f"| trained | {once(0.7)} | {once(0.6)} | {once(0.95)} | {once(0.9)} |" in text
    assert f"| least_tokens | {once(0.7)} | {once(0.6)} | {once(1.3)} | {once(1.2)} |" in text
    assert "| language models (1) | trained |" in text


def test_where_the_aim_is_missed_it_says_what_the_truth_gains() -> None:
    assert [page.misses(one) for one in RESULTS] == [False, False, True, False]
    assert "## Where the aim is missed" not in page.page(RESULTS, "", "")
    short = RESULTS[2] | {"ratios": RESULTS[2]["ratios"] | {"true fleet known": [0.7, 0.6]}}
    assert "| s02 | 1.000, 1.000 | 0.700, 0.600 |" in page.page([*RESULTS[:2], short], "", "")


def test_medians_have_the_interval_over_fleets() -> None:
    assert page.median(np.array([0.5, 0.5, 0.5])) == "0.500 (0.500 to 0.500)"
    value, low, high = (
        float(each.strip("(to)")) for each in page.median(np.linspace(0, 1, 101)).replace(" to ", " ").split()
    )
    assert (value, 0.3 < low < 0.45, 0.55 < high < 0.7) == (0.5, True, True)


def test_where_one_model_is_all_there_is_no_aim_is_judged() -> None:
    assert "Aims" not in page.page([result("s03", 1.0, models=1)], "", "")


def test_a_fleet_is_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out = []
    monkeypatch.setattr(Fleet, "_worked_out", lambda self: worked_out.append(self.number) or {"number": self.number})
    one = Fleet(1, 5, tmp_path, 2)
    assert [one.result(), one.result()] == [{"number": 5}] * 2
    assert worked_out == [5]
    assert json.loads((tmp_path / fleet.RESULT).read_text()) == {"number": 5}


def test_the_command_goes_on_with_what_was_worked_out(tmp_path: Path) -> None:
    for number, one in enumerate(RESULTS[:2]):
        folder = tmp_path / "rehearsal" / f"777-{NEVER_SEALED + number}"
        folder.mkdir(parents=True)
        (folder / fleet.RESULT).write_text(json.dumps(one))
    command = [sys.executable, "-m", "dev.experiments.own_fleet", "rehearse", "--fleets", "2", "--out", str(tmp_path)]
    root = Path(__file__).parents[4]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "2 of 2: " in done.stdout
    assert (tmp_path / "own_fleet.md").read_text() == page.page(
        RESULTS[:2],
        "python -m dev.experiments.own_fleet rehearse --seed 777 --fleets 2 --first 0 --seeds 8",
        "777, and these fleets were no secret",
    )
