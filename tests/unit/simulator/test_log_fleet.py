"""Fleets calibrated on logs of fleets that are known."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from balancer.config.profile_file import ModelProfile, Profile, ProfilePoint
from balancer.kernel.settings import Limits, Settings
from balancer.server.decision_log.recorded import DecisionLog, ModelService, RecordedService, Run
from dev.reference.logs import simulated_log
from policies.expected_latency import ExpectedLatency
from policies.power_of_two import PowerOfTwo
from policies.random_choice import RandomChoice
from simulator.log.fleet import calibrate, capped, scenario_from_log
from simulator.log.service import Executions, service_time, worked
from simulator.log.workload import arrivals_from_log
from simulator.off_policy.calibrated import twin_of
from simulator.run import run
from simulator.scenario import Scenario
from simulator.spec import (
    BatchingSpec,
    CacheSpec,
    DeviceSpec,
    Fault,
    FleetSpec,
    ModelSpec,
    NetworkSpec,
    Noise,
    Reports,
    ServiceTime,
    SimulatedWorker,
)
from simulator.workload.draws import Shares, UniformKeys
from simulator.workload.workload import ModelTraffic, Workload

LARGE = ModelSpec(
    "large",
    {"slow": ServiceTime((1, 8), (0.02, 0.06)), "fast": ServiceTime((1, 8), (0.01, 0.03))},
    Noise("lognormal", 0.1),
    BatchingSpec(8),
)
SMALL = ModelSpec("small", {"*": ServiceTime((1, 4), (0.004, 0.01))}, batching=BatchingSpec(4))
FLEET = FleetSpec(
    (LARGE, SMALL),
    (
        SimulatedWorker("a", "slow", models=("large",)),
        SimulatedWorker("b", "fast", models=("large",), weight=3.0),
        SimulatedWorker("c", "fast", speed=0.5, models=("large",)),
        SimulatedWorker("d", "fast", models=("small",)),
    ),
    balancers=2,
    reports=Reports(period_s=0.02),
    network=NetworkSpec(to_worker_s=0.002, outcome_s=0.003),
)
WORKLOAD = Workload(60.0, (ModelTraffic("large"), ModelTraffic("small", share=0.5)))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> DecisionLog:
    return simulated_log(tmp_path_factory.mktemp("log"), FLEET, WORKLOAD.arrivals(FLEET, 3000, 1), RandomChoice(), 1)


def test_what_the_log_tells_is_recovered(log: DecisionLog) -> None:
    calibration = calibrate(log)
    found = calibration.fleet
    assert not calibration.notes
    assert [model.name for model in found.models] == ["large", "small"]
    assert [model.batching.max_batch_rows for model in found.models] == [8, 4]
    assert [(w.name, w.device, w.weight, w.models) for w in found.workers] == [
        ("a", "slow", 1.0, ("large",)),
        ("b", "fast", 3.0, ("large",)),
        ("c", "fast", 1.0, ("large",)),
        ("d", "fast", 1.0, ("small",)),
    ]
    assert found.balancers == 2
    assert found.reports.period_s == pytest.approx(0.02, rel=0.05)
    assert found.network.to_worker_s + found.network.to_client_s == pytest.approx(0.002, abs=3e-4)
    assert found.network.outcome_s - found.network.to_client_s == pytest.approx(0.003, abs=1e-4)
    large, small = found.models
    assert large.noise.cv == pytest.approx(0.1, abs=0.03)
    assert small.noise.kind == "none"
    speeds = {worker.name: worker.speed for worker in found.workers}
    assert speeds["b"] / speeds["c"] == pytest.approx(2, rel=0.05)
    for name, kind, alone_s in (("a", "slow", 0.02), ("b", "fast", 0.01), ("c", "fast", 0.02)):
        assert large.service[kind].device_s[0] / speeds[name] == pytest.approx(alone_s, rel=0.05)
    assert small.service["fast"].device_s[0] == pytest.approx(0.004, rel=0.02)


def test_a_way_that_takes_now_more_and_now_less_is_told_from_what_executions_take(tmp_path: Path) -> None:
    """Else several executions at once seem likelier, as answers then come nearer to each other than any can take."""
    models = (
        ModelSpec("m", {"*": ServiceTime((1, 8), (0.002, 0.01))}, batching=BatchingSpec(8)),
        ModelSpec("n", {"*": ServiceTime((1, 8), (0.003, 0.02))}, batching=BatchingSpec(8)),
    )
    network = NetworkSpec(0.001, jitter_s=0.0005)
    fleet = FleetSpec(models, tuple(SimulatedWorker(name, device="gpu") for name in "abc"), network=network)
    rows = Shares({1: 0.5, 4: 0.3, 8: 0.2})
    workload = Workload(150.0, (ModelTraffic("m", rows=rows), ModelTraffic("n", rows=rows)))
    found = calibrate(simulated_log(tmp_path, fleet, workload.arrivals(fleet, 4000, 1), RandomChoice(), 1)).fleet
    assert {worker.sharing.concurrency for worker in found.workers} == {1}
    assert found.network.jitter_s == pytest.approx(0.0005, rel=0.3)
    assert max(model.noise.cv for model in found.models) < 0.1


def test_it_answers_as_the_fleet_did(log: DecisionLog) -> None:
    found = calibrate(log).fleet
    arrivals = capped(arrivals_from_log(log, [model.name for model in found.models]), found)
    for policy in (RandomChoice(), PowerOfTwo()):
        truth = run(FLEET, [WORKLOAD.arrivals(FLEET, 3000, 1)] * 2, policy)
        simulated = run(found, [arrivals] * 2, policy)
        assert simulated.latency_s.mean() == pytest.approx(truth.latency_s.mean(), rel=0.07)


def test_questions_and_priorities_that_are_no_numbers_execute_nothing_and_stop_nothing(log: DecisionLog) -> None:
    asked, outcomes = [], dict(log.outcomes)
    for decision in log.decisions[:300]:
        number = int(decision.request.number)
        request = dataclasses.replace(decision.request, number=number + 1_000_000, priority=float("nan"))
        asked.append(dataclasses.replace(decision, request=request))
        outcomes[decision.run, number + 1_000_000] = dataclasses.replace(outcomes[decision.run, number], latency_s=1e-4)
    questions = {(each.run, int(each.request.number)) for each in asked}
    strange = dataclasses.replace(log, decisions=[*log.decisions, *asked], outcomes=outcomes, questions=questions)
    assert calibrate(strange).fleet.models == calibrate(log).fleet.models


def test_a_log_is_a_scenario_to_train_on(log: DecisionLog) -> None:
    scenario = scenario_from_log(log, calibrate(log), name="tuesday")
    assert isinstance(scenario, Scenario)
    assert (scenario.name, scenario.split, scenario.requests) == ("tuesday", "train", 3000)
    arrivals = scenario.arrivals(5, requests=600)
    assert len(arrivals) / arrivals.time_s[-1] == pytest.approx(60, rel=0.15)
    twice = scenario.with_load(2 * scenario.workload.rate_per_s / scenario.capacity_per_s)
    assert twice.workload.rate_per_s == pytest.approx(2 * scenario.workload.rate_per_s)
    assert np.isfinite(run(scenario.fleet, [arrivals], PowerOfTwo()).latency_s).all()


@pytest.mark.parametrize(("at_once", "interference"), [(1, 1.0), (2, 0.8), (4, 0.0)])
def test_how_executions_share_a_device_is_found(tmp_path: Path, at_once: int, interference: float) -> None:
    """Under a policy that minds who is slow: what came to a worker is not independent of what it took. What workers
    count has waiting for the device in it."""
    noisy = dataclasses.replace(LARGE, instances=2, noise=Noise("lognormal", 0.5))
    workers = tuple(SimulatedWorker(name, "fast", sharing=DeviceSpec(at_once, interference)) for name in ("a", "b"))
    models = noisy, dataclasses.replace(SMALL, instances=2, noise=Noise("lognormal", 0.2))
    fleet = dataclasses.replace(FLEET, models=models, workers=workers, balancers=1)
    scenario = Scenario("one", "", "train", fleet, Workload(1.0, WORKLOAD.traffic)).with_load(0.7)
    log = simulated_log(tmp_path, fleet, scenario.arrivals(2, 4000), ExpectedLatency(), 2)
    found = calibrate(log).fleet
    assert {worker.sharing.concurrency for worker in found.workers} == {at_once}
    if at_once > 1:
        assert found.workers[0].sharing.interference == pytest.approx(interference, abs=0.25)
    for model, true in zip(found.models, models, strict=True):
        (table,), (true_table,) = model.service.values(), [next(reversed(true.service.values()))]
        for rows in (1, 3):
            true_s = float(np.interp(rows, true_table.rows, true_table.device_s))
            assert float(np.interp(rows, table.rows, table.device_s)) == pytest.approx(true_s, rel=0.12)
        assert model.noise.cv == pytest.approx(true.noise.cv, rel=0.2)


@pytest.mark.parametrize(("placed", "keys"), [(False, 60), (True, 300)])
def test_what_caches_save_is_found_whoever_places_keys(tmp_path: Path, placed: bool, keys: int) -> None:
    keyed = Workload(40.0, (ModelTraffic("large"),), keys=UniformKeys(keys))
    fleet = dataclasses.replace(
        FLEET,
        models=(dataclasses.replace(LARGE, batching=BatchingSpec(1)),),
        workers=FLEET.workers[:3],
        cache=CacheSpec(50, 0.6),
        settings=Settings(sticky_keys=placed),
        balancers=1,
    )
    log = simulated_log(tmp_path, fleet, keyed.arrivals(fleet, 4000, 3), PowerOfTwo(), 3)
    calibration = calibrate(log)
    found = calibration.fleet
    assert found.settings.sticky_keys == placed
    assert found.cache.saving == pytest.approx(0.6, abs=0.12)
    assert 15 <= found.cache.entries <= 100
    made = twin_of(log, calibration, seeds=2)
    assert (made.requests, made.models[0].requests > 3000) == (4000, True)
    assert max(abs(fit.p50_error.value) for fit in made.models) < 0.1


def test_a_profile_goes_before_the_log(log: DecisionLog) -> None:
    points = tuple(ProfilePoint(rows=rows, mean_s=0.5 * rows, executions=10) for rows in (1, 8))
    profile = Profile(
        device="slow",
        measured_at="2026-01-01T00:00:00",
        server="triton",
        models=(ModelProfile(model="large", version="1", max_batch_rows=8, instances=1, points=points),),
    )
    fleet = calibrate(log, profiles=(profile,)).fleet
    assert [worker.speed for worker in fleet.workers if worker.device == "slow"] == [1.0]
    found = fleet.models[0].service
    assert found["slow"].device_s == (0.5, 4.0)
    assert found["fast"].device_s[0] < 0.1


def test_without_counters_the_balancers_estimates_stand_in(log: DecisionLog) -> None:
    old = dataclasses.replace(log, service=[])
    calibration = calibrate(old)
    assert any("estimates stand in" in note for note in calibration.notes)
    assert any("largest batch of large is not told" in note for note in calibration.notes)
    large = calibration.fleet.models[0]
    speeds = {worker.name: worker.speed for worker in calibration.fleet.workers}
    assert large.service["slow"].device_s[0] / speeds["a"] == pytest.approx(0.02, rel=0.15)


def test_a_missing_balancer_is_noted(log: DecisionLog) -> None:
    half = dataclasses.replace(
        log,
        runs=log.runs[:1],
        decisions=[d for d in log.decisions if d.run == 0],
        service=[s for s in log.service if s.run == 0],
    )
    (note,) = (note for note in calibrate(half).notes if "balancers" in note)
    assert "agents report to 2 balancers and the log has 1" in note


def test_workers_that_came_and_went_do_so_again(tmp_path: Path) -> None:
    (*rest, last) = FLEET.workers
    late = dataclasses.replace(last, present=False, models=("large",))
    workers = (*rest, dataclasses.replace(last, name="e"), late)
    fleet = dataclasses.replace(FLEET, workers=workers, faults=(Fault("join", late.name, 3.0, duration_s=0.5),))
    log = simulated_log(tmp_path, fleet, WORKLOAD.arrivals(fleet, 800, 0), RandomChoice())
    found = calibrate(log).fleet
    (fault,) = found.faults
    assert (fault.kind, fault.worker) == ("join", late.name)
    assert fault.at_s == pytest.approx(3.5, abs=0.2)  # when it could be picked
    assert [worker.name for worker in found.workers if not worker.present] == [late.name]
    assert not scenario_from_log(log, calibrate(log)).fleet.faults


def test_a_worker_that_is_seldom_asked_is_there_all_the_time(tmp_path: Path) -> None:
    """Nobody asks for its model at the beginning, nor at the end."""
    arrivals = WORKLOAD.arrivals(FLEET, 800, 0)
    edges = (arrivals.time_s < 4) | (arrivals.time_s > arrivals.time_s[-1] - 4)
    arrivals.model[:] = np.where(edges, 0, arrivals.model)
    found = calibrate(simulated_log(tmp_path, FLEET, arrivals, RandomChoice())).fleet
    assert not found.faults
    assert all(worker.present for worker in found.workers)


def test_a_worker_that_was_down_is_so_again(tmp_path: Path) -> None:
    fleet = dataclasses.replace(FLEET, faults=(Fault("crash", "b", 3.0, 4.0),))
    (fault,) = calibrate(simulated_log(tmp_path, fleet, WORKLOAD.arrivals(fleet, 800, 0), RandomChoice())).fleet.faults
    assert (fault.kind, fault.worker) == ("crash", "b")
    assert fault.at_s == pytest.approx(3.0, abs=0.5)
    assert fault.at_s + fault.duration_s == pytest.approx(7.0, abs=0.5)


def test_limits_are_the_logs_and_queues_have_the_levels_that_requests_named(tmp_path: Path) -> None:
    settings = Settings(limits=Limits(max_pending_per_worker=5), stale_after_s=0.7)
    workload = dataclasses.replace(WORKLOAD, priorities=Shares({0: 0.5, 1: 0.3, 3: 0.2}))
    fleet = dataclasses.replace(FLEET, settings=settings)
    found = calibrate(simulated_log(tmp_path, fleet, workload.arrivals(fleet, 800, 0), RandomChoice())).fleet
    assert found.settings == settings
    assert {(one.batching.priority_levels, one.batching.default_priority) for one in found.models} == {(3, 3)}


def test_a_log_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no decision: record while requests flow"):
        calibrate(DecisionLog())


def record(run: int, at_s: float, incarnation: int, *batches: tuple[int, int, float]) -> RecordedService:
    return RecordedService(run, "w", at_s, incarnation, 2, (ModelService("m", 8, 1, batches),))


def test_counters_are_what_was_executed_while_the_log_was_written() -> None:
    runs = [Run(process, 0, 1.0, 0.0, 100.0, "") for process in ("0", "1")]
    first_life = [record(0, 0.0, 1, (1, 10, 9.0)), record(1, 1.0, 1, (1, 12, 9.2)), record(0, 5.0, 1, (1, 30, 11.0))]
    second_life = [record(1, 7.0, 2, (4, 2, 1.0)), record(1, 9.0, 2, (1, 1, 0.1), (4, 7, 1.5))]
    (found,) = worked(DecisionLog(runs, service=[*second_life, *first_life])).values()
    assert found.windows == [(107.0, 109.0), (100.0, 105.0)]
    assert found.balancers == 2
    batches = found.models["m"].batches
    assert sorted(batches) == [1, 4]
    assert batches[1] == pytest.approx((20 + 1, 2.0 + 0.1))
    assert batches[4] == pytest.approx((5, 0.5))
    # Told once: as they are.
    (once,) = worked(DecisionLog(runs, service=first_life[:1])).values()
    assert (once.windows, once.models["m"].batches) == ([], {1: (10, 9.0)})


def test_service_times_reach_from_one_row_to_the_largest_batch() -> None:
    line = service_time(Executions(16, 1, {2: (100, 100 * 0.030), 6: (100, 100 * 0.070)}))
    assert line.rows == (1, 2, 6, 16)
    assert line.device_s == pytest.approx((0.020, 0.030, 0.070, 0.170), rel=0.03)
    # With one size, 30% of its time grow with the rows, as the estimators assume.
    single = service_time(Executions(11, 1, {1: (50, 50 * 0.010)}))
    assert single.rows == (1, 11)
    assert single.device_s == pytest.approx((0.010, 0.040))
