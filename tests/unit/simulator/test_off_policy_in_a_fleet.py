"""Evaluation of a log from a simulated fleet, in which what it estimates is known: what it can tell, and what not."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from balancer.server.decision_log.recorded import DecisionLog
from dev.reference.logs import simulated_log
from policies.base import FleetView, FloatArray, Policy, Request
from policies.expected_latency import ExpectedLatency
from policies.least_requests import LeastRequests
from policies.power_of_two import PowerOfTwo
from policies.random_choice import RandomChoice
from simulator.compare.metrics import measure
from simulator.log.fleet import calibrate
from simulator.off_policy.assess import Assessed, Assessor, decisions_of
from simulator.off_policy.calibrated import LOGGING, Calibrated, simulate
from simulator.off_policy.report import verdict
from simulator.run import run
from simulator.scenario import load_scenario

SCENARIO = load_scenario("heterogeneous-bursty").with_load(0.4)
REQUESTS = 6000
TARGETS: dict[str, Policy] = {
    "random": RandomChoice(),
    "least_requests": LeastRequests(),
    "expected_latency": ExpectedLatency(),
    "power_of_two": PowerOfTwo(),
}
EVERY = 20


@dataclasses.dataclass(frozen=True)
class NowAndThen(Policy):
    """Random, but for every twentieth request, which another policy places."""

    name: ClassVar[str] = "now_and_then"
    summary: ClassVar[str] = "One step aside."
    source: ClassVar[str] = "the definition of a one-step deviation"

    other: Policy = dataclasses.field(default_factory=LeastRequests)

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        aside = np.asarray(request.number) % EVERY == 0
        answers: FloatArray = np.where(
            aside, self.other.probabilities(request, fleet), RandomChoice().probabilities(request, fleet)
        )
        return answers


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> DecisionLog:
    folder: Path = tmp_path_factory.mktemp("log")
    return simulated_log(folder, SCENARIO.fleet, SCENARIO.arrivals(3, REQUESTS), RandomChoice(), seed=3)


@pytest.fixture(scope="module")
def assessor(log: DecisionLog) -> Assessor:
    return Assessor(log)


@pytest.fixture(scope="module")
def assessed(assessor: Assessor) -> dict[str, Assessed]:
    return {name: assessor.assess(name, policy) for name, policy in TARGETS.items()}


@pytest.fixture(scope="module")
def calibrated(log: DecisionLog) -> Calibrated:
    return simulate(log, decisions_of(log), TARGETS, calibrate(log), seeds=3)


@pytest.fixture(scope="module")
def true_mean_s() -> dict[str, float]:
    """Of the fleet run by each policy, on the log's own requests."""
    arrivals = [SCENARIO.arrivals(3, REQUESTS)] * 3
    return {
        name: float(measure(run(SCENARIO.fleet, arrivals, policy)).latency.mean_s.mean())
        for name, policy in TARGETS.items()
    }


def test_the_logging_policy_is_evaluated_as_it_was(assessed: dict[str, Assessed], log: DecisionLog) -> None:
    own = assessed["random"]
    assert own.weights.effective == pytest.approx(REQUESTS)
    assert own.weights.mean.value == own.weights.largest == pytest.approx(1)
    logged_s = float(np.nanmean(log.joined().latency_s))
    assert own.mean_s.logged.value == own.mean_s.snips.value == pytest.approx(logged_s)
    assert own.mean_s.dr.value == pytest.approx(logged_s, rel=0.05)


@pytest.mark.parametrize("name", ["least_requests", "expected_latency"])
def test_estimates_are_of_one_step_aside_and_not_of_the_fleet_that_the_policy_runs(
    name: str, assessed: dict[str, Assessed], true_mean_s: dict[str, float]
) -> None:
    arrivals = [SCENARIO.arrivals(seed, REQUESTS) for seed in range(10, 18)]
    aside = run(SCENARIO.fleet, arrivals, NowAndThen(TARGETS[name]))
    truth_s = float(aside.latency_s[:, ::EVERY].mean())
    found = assessed[name]
    for estimate in (found.mean_s.snips, found.mean_s.dr):
        assert estimate.value == pytest.approx(truth_s, rel=0.12)
        assert estimate.high < 0.7 * true_mean_s[name], (
            "the policy's own queues are longer than those it stepped around"
        )
    assert 300 < found.weights.effective < REQUESTS
    assert found.weights.unsupported == 0


def test_the_calibrated_fleet_orders_policies_as_the_true_one(
    calibrated: Calibrated, true_mean_s: dict[str, float]
) -> None:
    simulated = {one.policy: one.mean_s.value for one in calibrated.runs if one.policy != LOGGING}
    assert sorted(simulated, key=simulated.__getitem__) == sorted(true_mean_s, key=true_mean_s.__getitem__)
    for name in ("least_requests", "expected_latency", "power_of_two"):
        assert simulated[name] == pytest.approx(true_mean_s[name], rel=0.1)
    assert abs(calibrated.mean_error.value) < 0.1
    logging, random = calibrated.runs[0], next(one for one in calibrated.runs if one.policy == "random")
    assert dataclasses.replace(random, policy=LOGGING) == logging
    assert not calibrated.notes


def test_the_verdict_says_what_it_rests_on(
    assessed: dict[str, Assessed], assessor: Assessor, calibrated: Calibrated
) -> None:
    said = verdict(assessed["least_requests"], assessor, calibrated)
    assert said.simulation == "good"
    assert said.one_step in ("good", "with care")
    assert "lower mean latency" in said.says
    off = dataclasses.replace(calibrated, mean_error=dataclasses.replace(calibrated.mean_error, value=0.6))
    worse = verdict(assessed["least_requests"], assessor, off)
    assert worse.simulation == "not"
    assert "off by +60% in the mean" in worse.simulation_why[0]
    thin = dataclasses.replace(assessed["least_requests"].weights, effective=12.0, share=0.002)
    assert verdict(dataclasses.replace(assessed["least_requests"], weights=thin), assessor, None).one_step == "not"


def test_a_log_that_hardly_explores_is_said_to_tell_nothing(tmp_path: Path) -> None:
    sure = simulated_log(tmp_path, SCENARIO.fleet, SCENARIO.arrivals(4, 1500), ExpectedLatency(temperature=0.0), 4)
    assessor = Assessor(sure)
    found = assessor.assess("random", RandomChoice())
    assert found.weights.unsupported > 0.5
    assert found.weights.mean.value < 0.6
    said = verdict(found, assessor, None)
    assert said.one_step == "not"
    assert any("policy that explores" in why for why in said.one_step_why)


def test_clipping_is_told_with_its_bias(log: DecisionLog) -> None:
    assessor = Assessor(log, clip=3.0)
    found = assessor.assess("least_requests", LeastRequests())
    assert found.weights.largest == 3
    assert 0.3 < found.weights.clipped_share < 0.8
    whole = Assessor(log).assess("least_requests", LeastRequests())
    assert found.mean_s.ips.value < whole.mean_s.ips.value
    said = verdict(found, assessor, None)
    assert any("clipping took" in why for why in said.one_step_why)


def test_blocks_that_are_too_short_are_refused(log: DecisionLog) -> None:
    with pytest.raises(ValueError, match=r"blocks of 0.0001 s are more than 2,000 .* give .* at least"):
        Assessor(log, block_s=0.0001)
