"""`balancer train` for one fleet, or that of a log, in processes and on Ray."""

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.training import FOR_ONE_FLEET, OF_A_FLEET, SMALL, check_same, policy, train

from dev.reference.logs import simulated_log
from policies.expected_latency import ExpectedLatency
from policies.learned.artifact import make_artifact, write_artifact
from policies.learned.features import FEATURES
from policies.random_choice import RandomChoice
from simulator.scenario import load_scenario
from simulator.train import plan as planning
from simulator.train.plan import initial
from simulator.train.validation import learned


@pytest.fixture(scope="module")
def whole_of_a_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a training for one fleet."""
    out = tmp_path_factory.mktemp("of_a_fleet") / "run"
    result = train(out, *OF_A_FLEET, "--jobs", "1")
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.timeout(600)  # two starts of Ray, each of many processes, on a machine that may be busy
def test_on_a_ray_cluster_of_two_workers_it_is_the_same(
    whole_of_a_fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'balancer[ray]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    started = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        address = started.address_info["gcs_address"]
        command = [
            sys.executable,
            "-m",
            "balancer",
            "train",
            "--out",
            str(tmp_path / "run"),
            *OF_A_FLEET,
            "--ray",
            address,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        ray.shutdown()
    assert done.returncode == 0, done.stderr
    check_same(policy(tmp_path / "run", "last.npz"), policy(whole_of_a_fleet, "last.npz"))


def test_a_ray_cluster_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'balancer[ray]'")
    # It looks among all processes of the machine, where other tests may have one.
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(set))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    result = train(tmp_path / "run", *SMALL, "--ray", "auto")
    assert result.exit_code == 1
    assert "--ray auto: no cluster answers there" in result.output
    assert "start one (ray start --head), or name local" in " ".join(result.output.split())


def test_training_for_a_logs_fleet_begins_with_a_policy_and_ends_no_worse(tmp_path: Path) -> None:
    scenario = load_scenario("several-models")
    simulated_log(tmp_path / "log", scenario.fleet, scenario.arrivals(1, 600), RandomChoice(), 1)
    ranges = np.zeros(len(FEATURES)), np.ones(len(FEATURES))
    start = make_artifact(initial(np.random.default_rng(3), 4, 20.0), *ranges, {})
    (tmp_path / "start.npz").write_bytes(write_artifact(start))
    result = train(
        *(tmp_path / "run", "--from-log", str(tmp_path / "log"), "--unchecked", *FOR_ONE_FLEET),
        *("--init", str(tmp_path / "start.npz"), "--jobs", "1"),
    )
    assert result.exit_code == 0, result.output
    made = policy(tmp_path / "run")
    costs = {each["iteration"]: each["cost"] for each in made.record["curve"]}
    assert costs[made.record["iteration"]] <= costs[0]
    assert made.record["settings"]["hidden"] == len(made.network.b1) == 4
    assert made.record["scoreboard"].keys() == {"log"}
    assert made.record["tolls"].keys() == {"bert-large", "bert-small", "forecast"}
    board = made.record["scoreboard"]["log"]["expected_latency"]["mean"]
    assert ("Nothing to gain here" in result.output) == (board[2] >= 1)
    assert "off-policy: one decision changed: " in " ".join(result.output.split())
    assert len(planning.not_trained_on(planning.TrainingPlan(from_log=str(tmp_path / "log")))) == 150


def test_for_one_fleet_processes_make_no_difference_and_it_goes_on_where_it_was(
    whole_of_a_fleet: Path, tmp_path: Path
) -> None:
    result = train(tmp_path / "two", *OF_A_FLEET, "--jobs", "2")
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "bert-large: " in words
    assert "forecast: " in words
    last = policy(whole_of_a_fleet, "last.npz")
    assert last.network.tolls.shape[0] > 20
    check_same(policy(tmp_path / "two", "last.npz"), last)
    for step in ("begun", "ended"):
        how = ("--resume",) if step == "ended" else (*OF_A_FLEET, "--minutes", "0")
        assert train(tmp_path / "three", *how, "--jobs", "1").exit_code == 0
    assert policy(tmp_path / "three", "last.npz").digest == last.digest


def test_a_fleet_that_is_not_like_the_log_is_not_trained_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.off_policy.calibrated.P50_WITHIN", 0.0)
    monkeypatch.setattr("simulator.off_policy.calibrated._of_one_more", lambda by_seed, confidence: 0.0)
    scenario = load_scenario("stale-reports")
    simulated_log(tmp_path / "log", scenario.fleet, scenario.arrivals(1, 300), RandomChoice(), 1)
    result = train(tmp_path / "run", "--from-log", str(tmp_path / "log"), *FOR_ONE_FLEET)
    assert result.exit_code == 1
    words = " ".join(result.output.split())
    assert "is not like it: p50 of" in words
    assert "% are allowed" in words
    assert "or train nonetheless (--unchecked)" in words
    assert not (tmp_path / "run").exists()


def test_a_logs_first_part_trains_and_its_last_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.off_policy.calibrated._of_one_more", lambda by_seed, confidence: 9.0)
    scenario = load_scenario("stale-reports")
    arrivals = scenario.arrivals(1, 400)
    simulated_log(tmp_path / "log", scenario.fleet, arrivals, RandomChoice(), 1)
    before, after, remarks = planning.log_scenarios(planning.TrainingPlan(from_log=str(tmp_path / "log")))
    assert any("p50" in each and each.endswith("a longer log would tell more") for each in remarks)
    assert (before.requests, after.requests) == (300, 100)
    assert before.fleet == after.fleet
    for part, chosen in ((before, slice(0, 300)), (after, slice(300, 400))):
        recorded: Any = part.workload.recorded
        own_s = arrivals.time_s[chosen]
        assert part.workload.rate_per_s == pytest.approx((len(own_s) - 1) / (own_s[-1] - own_s[0]), rel=0.02)
        gap_s = np.diff(recorded.time_s) / part.workload.rate_per_s
        np.testing.assert_allclose(gap_s, np.diff(own_s), rtol=0.02, atol=2e-3)


def test_a_log_that_grew_is_noticed_on_resume(tmp_path: Path) -> None:
    scenario = load_scenario("stale-reports")
    simulated_log(tmp_path / "log", scenario.fleet, scenario.arrivals(1, 200), RandomChoice(), 1)
    start = tmp_path / "start.npz"
    start.write_bytes(
        write_artifact(make_artifact(initial(np.random.default_rng(3), 4, 20.0), *[np.zeros(len(FEATURES))] * 2, {}))
    )
    options = ("--from-log", str(tmp_path / "log"), "--unchecked", "--init", str(start))
    first = train(tmp_path / "run", *options, *FOR_ONE_FLEET, "--jobs", "1", "--minutes", "0")
    assert first.exit_code == 0, first.output
    again = train(tmp_path / "run", "--resume", "--jobs", "1", "--minutes", "0")
    assert again.exit_code == 0, again.output
    simulated_log(tmp_path / "log", scenario.fleet, scenario.arrivals(2, 100), RandomChoice(), 2)
    result = train(tmp_path / "run", "--resume", "--jobs", "1")
    assert result.exit_code != 0
    assert "have changed since it began" in result.output


def test_for_one_fleet_keys_are_the_networks_to_weigh_and_its_rival_has_the_routers_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyed = load_scenario("cache-affinity")
    placed = dataclasses.replace(keyed.fleet, settings=dataclasses.replace(keyed.fleet.settings, sticky_keys=True))
    monkeypatch.setattr(planning, "load_scenario", lambda name: dataclasses.replace(keyed, fleet=placed))
    found = planning.course(planning.make_plan({"fleet": "cache-affinity"}))
    (judged,) = {case.fleet(learned(found.algorithm.network)).settings.sticky_keys for case in found.validation}
    (rival,) = {case.fleet(ExpectedLatency()).settings.sticky_keys for case in found.validation}
    assert (found.weighs_keys, judged, rival) == (True, False, True)


def test_a_run_from_a_log_has_settings_of_its_own() -> None:
    plan = planning.make_plan({"from_log": "anywhere"})
    assert (plan.init, plan.scenarios, plan.settings["requests"], plan.settings["hidden"]) == ("", (), 12_000, 0)
