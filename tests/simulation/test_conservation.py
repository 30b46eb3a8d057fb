"""What holds in every run of the reference, whatever fails, and so of the engine, which does the same."""

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.strategies import Scenario, generating_scenarios, holding_scenarios, scenarios
from support.examples import examples

from dev.reference import Simulation
from policies import BUILTIN
from simulator.result import Result, Status
from simulator.spec import FleetSpec

_EXECUTED = (Status.OK, Status.CANCELLED)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(BUILTIN)))
def test_a_run_of_any_fleet_under_any_policy_adds_up(data: st.DataObject, name: str) -> None:
    scenario = data.draw(st.one_of(scenarios(), holding_scenarios(), generating_scenarios()))
    simulation = Simulation(scenario.fleet, scenario.arrivals, BUILTIN[name](), scenario.seed)
    result = simulation.run()
    every_request_ends_once(scenario, result)
    clients_wait_for_their_answers(scenario, result)
    nothing_is_left_in_a_queue_or_in_flight(simulation)
    workers_execute_as_they_are_configured(simulation)
    crashed_workers_execute_nothing(simulation)
    within_a_level_the_first_is_served_first(simulation)


def every_request_ends_once(scenario: Scenario, result: Result) -> None:
    fleet, arrivals, _ = scenario
    status, attempts = result.status[0], result.attempts[0]
    turned_away = np.isin(status, (Status.SHED, Status.NO_WORKER))
    answered = np.isin(status, (Status.OK, Status.ERROR))
    cancelled = status == Status.CANCELLED
    never_sent = turned_away | (cancelled & (attempts == 0))

    assert status.shape == (len(arrivals),)
    assert not np.any(status == Status.UNFINISHED)
    assert np.array_equal(never_sent, attempts == 0)
    assert np.array_equal(never_sent, result.picked[0] < 0)
    assert np.array_equal(turned_away, never_sent) or fleet.settings.holding.models
    assert np.array_equal(answered, result.worker[0] >= 0)
    assert attempts.max() <= 1 + min(fleet.retries, fleet.settings.max_fallbacks, len(fleet.workers) - 1)
    assert np.array_equal(
        result.worker[0] != result.picked[0],
        (status == Status.UNAVAILABLE) | (answered & (attempts > 1)) | (cancelled & ~never_sent),
    )

    # Until a worker or the balancer answered, or the client gave up.
    at_worker = (attempts > 0) & ~cancelled
    spent_s = result.latency_s[0] - np.where(at_worker, fleet.network.to_client_s, 0.0)
    assert np.all(spent_s >= np.where(at_worker, fleet.network.to_worker_s, 0.0) - 1e-12)
    # Little's law: the integral of the number in the system is the sum of the times in it.
    assert result.pending_integral_s[0] == pytest.approx(spent_s.sum(), abs=1e-9)
    assert result.end_s[0] == pytest.approx((result.arrival_s[0] + spent_s).max(), abs=1e-12)
    assert np.all(result.busy_s[0] <= result.end_s[0] + 1e-9)

    extras = arrivals.extras
    assert extras is not None
    assert result.latency_s[0][cancelled] == pytest.approx(extras.patience_s[cancelled])
    assert np.all(spent_s <= extras.patience_s + 1e-12)
    generates = np.array([model.generation is not None for model in fleet.models])[arrivals.model]
    streams = (generates | (extras.responses > 0)) & (status == Status.OK)
    assert np.array_equal(np.isfinite(result.first_s[0]), streams)
    assert np.all(result.first_s[0][streams] <= result.latency_s[0][streams] + 1e-12)
    # A sequence without fallbacks: whoever is picked is the only one that is asked.
    assert np.all(attempts[extras.sequence >= 0] <= 1)
    served = np.bincount(result.worker[0][status == Status.OK], minlength=len(fleet.workers))
    most = max(max(model.batching.max_batch_rows, model.most_at_once) for model in fleet.models)
    assert np.all(served <= most * result.executions[0])


def clients_wait_for_their_answers(scenario: Scenario, result: Result) -> None:
    starts_s, ends_s = result.arrival_s[0], result.arrival_s[0] + result.latency_s[0]
    if not scenario.arrivals.clients:
        assert np.array_equal(starts_s, scenario.arrivals.time_s)
        return
    # Answers go before requests at equal times; latencies are differences, so the ends are off by rounding.
    at_once = [int(np.sum((starts_s <= t) & (ends_s > t + 1e-9))) for t in starts_s]
    assert max(at_once) <= scenario.arrivals.clients


def nothing_is_left_in_a_queue_or_in_flight(simulation: Simulation) -> None:
    # What executes for clients that gave up goes on after the last answer.
    cancelled = np.sum(simulation.record.status == Status.CANCELLED)
    assert 0 <= sum(worker.pending for worker in simulation.world.workers) <= cancelled
    for router in simulation.world.routers:
        queue = router.fleet.queue
        np.testing.assert_array_equal(queue.sent_requests, queue.done_requests)
        # The run ends before peers hear of the last ends, so these requests still count at them.
        if not simulation.fleet.tells_peers:
            assert not queue.in_flight.any()
            assert not queue.known_work_s.any()
        assert router.outcomes["unmatched"] == 0
        assert not router.failures
    # Those whose clients left before they reached a worker are withdrawn.
    withdrawn = len(simulation.decided) - sum(router.outcomes["matched"] for router in simulation.world.routers)
    assert 0 <= withdrawn <= cancelled


def workers_execute_as_they_are_configured(simulation: Simulation) -> None:
    fleet, arrivals = simulation.fleet, simulation.arrivals
    batched = {m for m, model in enumerate(fleet.models) if model.generation is None}
    at_once: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for execution in simulation.executed:
        requests = list(execution.requests)
        at_once[execution.worker, execution.model] += [(execution.started_s, 1), (execution.ended_s, -1)]
        if execution.model not in batched:
            continue  # a step, which is of nobody alone
        assert len(set(arrivals.model[requests])) == 1
        assert arrivals.rows[requests].sum() <= fleet.models[execution.model].batching.max_batch_rows
    for (_, m), changes in at_once.items():
        counts = np.cumsum([change for _, change in sorted(changes)])
        assert counts.max(initial=0) <= fleet.models[m].instances
    executed = [request for execution in simulation.executed for request in execution.requests]
    assert len(executed) == len(set(executed))
    # What a client gave up while it was executed is executed to its end.
    status = np.where(np.isin(arrivals.model, [*batched]), simulation.record.status, Status.ERROR)
    assert {*np.flatnonzero(status == Status.OK)} <= {*executed} <= {*np.flatnonzero(np.isin(status, _EXECUTED))}


def crashed_workers_execute_nothing(simulation: Simulation) -> None:
    for execution in simulation.executed:
        for from_s, until_s in down_s(simulation.fleet, execution.worker):
            assert execution.ended_s <= from_s or execution.started_s >= until_s or from_s == until_s


def down_s(fleet: FleetSpec, worker: int) -> Iterator[tuple[float, float]]:
    """Between what times a worker is surely down; a crash while it loads or is absent is none."""
    crashes = [f for f in fleet.faults if f.kind == "crash" and f.worker == fleet.workers[worker].name]
    for crash in crashes if fleet.workers[worker].present else ():
        ends_s = [c.at_s + c.duration_s for c in crashes]
        yield crash.at_s, min((end_s for end_s in ends_s if end_s >= crash.at_s), default=math.inf)


def within_a_level_the_first_is_served_first(simulation: Simulation) -> None:
    fleet, arrivals = simulation.fleet, simulation.arrivals
    if fleet.network.jitter_s or fleet.network.across_s or fleet.settings.holding.models:
        return  # requests overtake each other before they are queued
    reached: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for execution in sorted(simulation.executed, key=lambda e: (e.worker, e.number)):
        model = fleet.models[execution.model].batching
        if model.timeout_action == "delay":
            continue
        for r in execution.requests:
            level = min(int(arrivals.priority[r]) or model.default_priority, model.priority_levels)
            if simulation.record.attempts[r] == 1:
                reached[execution.worker, execution.model, level].append(simulation.record.arrival_s[r])
    for times_s in reached.values():
        assert times_s == sorted(times_s)
