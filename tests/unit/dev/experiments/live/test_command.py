import json
import re

import pytest
from click.testing import CliRunner
from unit.experiments.live_switchback.synthetic import make_recording

from experiments.live_switchback import page
from experiments.live_switchback.__main__ import main
from experiments.live_switchback.figures import FIGURES, IN_TIME, Pair
from simulator.scoreboard.statistics import Estimate


@pytest.fixture(autouse=True)
def _few_seeds(monkeypatch):
    monkeypatch.setattr(page, "SEEDS", 2)


def again(directory, recording):
    recording.save(directory / "recording.json")
    return CliRunner().invoke(main, ["--again", "--out", str(directory), "--page", str(directory / "page")])


def test_a_recording_becomes_a_page_a_picture_and_json(tmp_path):
    done = again(tmp_path, make_recording())
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page" / "switchback.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "page" / "README.md").read_text()
    assert "**emulated** (A100, T4)" in text
    assert "| expected_latency / wlpr | mean |" in text
    assert "| expected_latency - power_of_two | in time |" in text
    assert "worker-1 T4 (0.667)" in text
    # Every table is whole: as many cells in each of its lines as in its head.
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert not re.search(r"\bnan\b|\binf\b", text)
    numbers = json.loads((tmp_path / "page" / "results.json").read_text())
    assert numbers["problems"] == []
    assert list(numbers["all"]["policies"]["wlpr"]) == list(FIGURES)
    assert set(numbers["models"]) == {"emulated_tft", "emulated_bert_distilled", "emulated_bert_large"}
    assert set(numbers["all"]["against"]) == {"wlpr", "power_of_two"}
    measured = numbers["all"]["against"]["wlpr"]["mean"]["measured"]
    assert numbers["own_decisions"] == {"wlpr": 1.0, "power_of_two": 1.0, "expected_latency": pytest.approx(0.95)}
    assert "wlpr 100.0%, power_of_two 100.0%, expected_latency 95.0%" in text
    assert measured["low"] < measured["value"] < measured["high"]
    # Made-up means of 20 and 40 ms.
    assert measured["value"] == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        ({"failed": 2}, "2 of the requests that count under .* failed"),
        ({"own": 0.5}, "expected_latency itself decided 50% of the requests in its windows"),
        ({"slowest_swap_s": 0.9}, r"a swap took 0.90 s, longer than the 0.5 s"),
    ],
)
def test_a_run_that_is_not_what_it_says_is_told_and_fails(tmp_path, flaw, said):
    done = again(tmp_path, make_recording(**flaw))
    assert done.exit_code == 1
    assert re.search(said, done.output)
    assert re.search(said, (tmp_path / "page" / "README.md").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "fastest", "--policy", "wlpr"], "--policy is 'fastest': give one of"),
        (["--policy", "wlpr"], "give at least two, each once"),
        (["--policy", "wlpr", "--policy", "wlpr"], "give at least two, each once"),
        (["--policy", "wlpr", "--policy", "prequal", "--window-s", "0"], "window_s is 0"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path, arguments, said):
    done = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert said in done.output
    assert not (tmp_path / "out").exists()


def test_again_without_a_recording_says_what_to_do(tmp_path):
    done = CliRunner().invoke(main, ["--again", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "run it without first" in done.output


def verdict(figure, value, low, high):
    estimate = Estimate(value, low, high)
    return page._verdict(Pair(figure, estimate, estimate))


def test_a_difference_is_claimed_only_where_the_interval_excludes_none():
    assert verdict("p99", 0.9, 0.8, 0.99) == "better"
    assert verdict("p99", 1.2, 1.1, 1.3) == "**worse**"
    assert verdict("p99", 0.9, 0.8, 1.01) == "not told apart"
    assert verdict(IN_TIME, 0.02, 0.01, 0.03) == "better"
    assert verdict(IN_TIME, -0.02, -0.03, -0.01) == "**worse**"
    assert verdict(IN_TIME, 0.02, 0.0, 0.03) == "not told apart"
