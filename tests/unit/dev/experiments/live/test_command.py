"""What the commands make of a recording, and what they refuse."""

import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest
from click.testing import CliRunner
from unit.dev.experiments.live.synthetic import PROFILES, SESSION, make_recording

from dev.experiments.live import fidelity, figures, report, switchback
from dev.experiments.live.__main__ import main
from dev.experiments.live.figures import FIGURES, IN_TIME, Findings, Pair
from dev.experiments.live.session import QUICK, SWITCHBACK, capacity_weights
from simulator.compare.statistics import Estimate


@pytest.fixture(autouse=True)
def _few_seeds(monkeypatch):
    monkeypatch.setattr(report, "SEEDS", 2)
    monkeypatch.setattr(figures, "RESAMPLES", 100)


def again(directory, recording, command="switchback"):
    recording.save(directory / "recording.json")
    return CliRunner().invoke(main, [command, "--again", "--out", str(directory), "--page", str(directory / "page")])


def check_tables(text):
    """Every table is whole: as many cells in each of its lines as in its head; and no number is none."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_a_recording_becomes_a_page_a_picture_and_json(tmp_path):
    done = again(tmp_path, make_recording())
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page" / "switchback.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "page" / "README.md").read_text()
    assert "**emulated** (A100, T4)" in text
    assert "| expected_latency / wlpr | mean |" in text
    assert "| expected_latency - power_of_two | in time |" in text
    check_tables(text)
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


def test_fidelity_is_not_met_by_made_up_latencies(tmp_path):
    done = again(tmp_path, make_recording(), "fidelity")
    assert done.exit_code == 1, done.output
    assert "not every aim is met" in done.output
    assert (tmp_path / "page" / "live.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "page" / "live.md").read_text()
    assert "median error of p50 at most 10%" in text
    check_tables(text)
    numbers = json.loads((tmp_path / "page" / "live.json").read_text())
    assert numbers["requests"] == len(SESSION.workload())
    assert set(numbers["policies"]) == set(SESSION.policies)
    wlpr = numbers["policies"]["wlpr"]
    assert wlpr["p50"]["error"] == pytest.approx(wlpr["p50"]["simulated"]["value"] / wlpr["p50"]["live"]["value"] - 1)
    assert sum(wlpr["share_by_worker"]["live"]) == pytest.approx(1.0, abs=1e-3)


def with_figures(values):
    """A report of policies with these values, ends of intervals and predictions."""
    pairs = {
        name: [
            Pair(figure, Estimate(value, low, high), Estimate(predicted, predicted, predicted)) for figure in FIGURES
        ]
        for name, (value, low, high, predicted) in values.items()
    }
    nothing = dict.fromkeys((field.name for field in fields(report.Report)), None)
    return report.Report(**{**nothing, "whole": Findings(pairs, {})})


def test_only_policies_with_intervals_apart_are_held_to_their_order():
    found = with_figures({"c": (2.0, 1.6, 2.4, 0.95), "b": (1.2, 1.05, 1.5, 0.9), "a": (1.0, 0.9, 1.1, 1.0)})
    orders = {(each.faster, each.slower): each.agrees for each in fidelity.orders(found) if each.figure == "p50"}
    assert orders == {("a", "c"): False, ("b", "c"): True}
    assert not fidelity.met(found)
    assert "live a before c" in fidelity.summary(found)
    good = with_figures({"a": (1.0, 0.9, 1.1, 1.05), "b": (2.0, 1.9, 2.1, 1.9)})
    assert fidelity.met(good)
    assert "2 of 2 pairs" in fidelity.summary(good)
    assert not fidelity.met(with_figures({"a": (1.0, 0.9, 1.1, 1.15)}))


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
        (["--policy", "learned", "--policy", "wlpr"], "give its file instead, by --learned FILE"),
        (["--learned", "no_such.npz"], "file no_such.npz cannot be read"),
        (["--learned", "no_such.npz", "--train"], "--train and --learned are given"),
        (["--policy", "wlpr"], "give at least two, each once"),
        (["--policy", "wlpr", "--policy", "wlpr"], "give at least two, each once"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path, arguments, said):
    done = CliRunner().invoke(main, ["switchback", *arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert said in done.output
    assert not (tmp_path / "out").exists()


def test_again_without_a_recording_says_what_to_do(tmp_path):
    done = CliRunner().invoke(main, ["fidelity", "--again", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "run it without first" in done.output


def verdict(figure, value, low, high):
    estimate = Estimate(value, low, high)
    return switchback._verdict(Pair(figure, estimate, estimate))


def test_a_difference_is_claimed_only_where_the_interval_excludes_none():
    assert verdict("p99", 0.9, 0.8, 0.99) == "better"
    assert verdict("p99", 1.2, 1.1, 1.3) == "**worse**"
    assert verdict("p99", 0.9, 0.8, 1.01) == "not told apart"
    assert verdict(IN_TIME, 0.02, 0.01, 0.03) == "better"
    assert verdict(IN_TIME, -0.02, -0.03, -0.01) == "**worse**"
    assert verdict(IN_TIME, 0.02, 0.0, 0.03) == "not told apart"


def test_weights_are_as_fast_as_workers_were_measured_to_be():
    # worker-0 takes half as long for a row; the mean worker weighs 1.
    weights = {"worker-0": pytest.approx(4 / 3, abs=1e-3), "worker-1": pytest.approx(2 / 3, abs=1e-3)}
    assert capacity_weights(PROFILES) == weights


@pytest.mark.parametrize("design", [SWITCHBACK, QUICK, replace(SWITCHBACK, pause_s=0.25)])
def test_each_round_has_each_policy_once_in_changing_order_under_the_same_requests(design):
    turns, workload, turn = design.turns(), design.workload(), design.turn_of_requests()
    rounds = [[each.policy for each in turns if each.round == number] for number in range(design.rounds)]
    assert all(sorted(policies) == sorted(design.policies) for policies in rounds)
    assert len({tuple(policies) for policies in rounds}) > 1
    starts_s = [each.start_s for each in turns]
    assert [each.end_s + design.pause_s for each in turns[:-1]] == pytest.approx(starts_s[1:])
    first, *rest = (workload.time_s[turn == at] - starts_s[at] for at in range(len(design.policies)))
    for each in rest:
        np.testing.assert_allclose(each, first, atol=1e-9)
