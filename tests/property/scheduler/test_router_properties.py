"""Whatever happens in whatever order, the router's counts balance and its decisions are legal."""

from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fleets import model, report

from balancer.kernel.settings import Settings
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event, Finished, ReportsLost, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from balancer.scheduler.snapshot import reasons
from policies import BUILTIN
from policies.base import Request

NAMES = ["a", "b", "c", "d"]
MODELS = ["m", "n"]

workers = st.sampled_from(NAMES)
batches = st.tuples(st.integers(1, 16), st.integers(1, 50), st.floats(0, 5)).map(lambda one: (one,))
reports = st.builds(
    lambda worker, number, incarnation, ready, pending, balancers, some: report(
        worker,
        number,
        [model(name, pending=pending, executing=1.0, max_batch_rows=4, batches=some, instances=2) for name in MODELS],
        incarnation=incarnation,
        ready=ready,
        balancers=balancers,
    ),
    workers,
    st.integers(0, 50),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 30),
    st.integers(1, 4),
    batches,
)
membership = st.one_of(
    st.builds(WorkerAdded, workers, weight=st.floats(0.1, 10), draining=st.booleans()),
    st.builds(WorkerRemoved, workers),
    st.builds(ReportsLost, workers),
)
finishes = st.builds(Finished, st.integers(-1, 60), st.sampled_from(["", *NAMES]), st.floats(0, 9), st.booleans())
requests = st.builds(
    Request,
    st.sampled_from(MODELS),
    rows=st.integers(1, 20),
    key=st.none() | st.integers(0, 2**64 - 1),
    priority=st.integers(0, 3),
    sequence=st.booleans(),
).map(lambda r: r if r.key is not None else Request(r.model, rows=r.rows, priority=r.priority))
steps = st.lists(st.one_of(reports, membership, finishes, requests, requests, requests), max_size=60)


def work_s(router: Router) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the device for the own rows that execute and for those that wait, by worker and model, from nothing.

    What waits goes in full batches. What executes is a batch in each instance, as far as there are rows for them.
    """
    q, s = router.fleet.queue, router.fleet.service
    rows = q.known_rows - q.waiting_rows
    batches = np.maximum(np.ceil(rows / s.max_batch_rows), np.minimum(rows, s.instances))
    executing_s = (batches * s.fixed_s + rows * s.per_row_s) / s.parallel
    full = np.ceil(q.waiting_rows / s.max_batch_rows)
    return executing_s, (full * s.fixed_s + q.waiting_rows * s.per_row_s) / s.parallel


def assert_counts_balance(router: Router, in_flight: Mapping[int, tuple[str, Request]]) -> None:
    """`in_flight`: the worker of each request without an outcome, by its number."""
    q = router.fleet.queue
    counts, rows = np.zeros_like(q.in_flight), np.zeros_like(q.known_rows)
    for worker, request in in_flight.values():
        counts[router.fleet.index[worker]] += 1
        rows[router.fleet.index[worker], router.fleet.models[request.model]] += request.rows
    np.testing.assert_array_equal(q.in_flight, counts)
    np.testing.assert_array_equal(q.known_rows, rows)
    executing_s, waiting_s = work_s(router)
    np.testing.assert_allclose(q.executing_s, executing_s.sum(axis=1), atol=1e-6)
    np.testing.assert_allclose(q.known_work_s, (executing_s + waiting_s).sum(axis=1), atol=1e-6)
    assert (q.known_work_s >= -1e-9).all()
    assert not router.failures


def decided(router: Router, request: Request, now_s: float) -> Decision | str:
    try:
        return router.route(request, now_s)
    except RoutingError as error:
        return str(error)


@settings(max_examples=examples(150), deadline=None)
@given(steps=steps, policy=st.sampled_from(sorted(BUILTIN)), gaps=st.lists(st.floats(0, 0.3), min_size=60, max_size=60))
def test_counts_balance_and_decisions_are_legal(steps: list[Event | Request], policy: str, gaps: list[float]) -> None:
    router = Router(BUILTIN[policy](), Settings())
    twin = Router(BUILTIN[policy](), Settings())
    in_flight: dict[int, tuple[str, Request]] = {}
    now_s = 0.0
    for name in NAMES:
        for each in (router, twin):
            each.observe(WorkerAdded(name), now_s)
            each.observe(report(name, 0, [model(m, max_batch_rows=4, instances=2) for m in MODELS]), now_s)
    for step, gap in zip(steps, gaps, strict=False):
        now_s += gap
        for each in (router, twin):
            each.tick(now_s)
        if isinstance(step, Request):
            legal = {name for name, why in reasons(router, step, now_s).items() if not why}
            outcomes = [decided(each, step, now_s) for each in (router, twin)]
            assert outcomes[0] == outcomes[1]
            if not isinstance(outcomes[0], str):
                decision = outcomes[0]
                in_flight[decision.number] = decision.worker, step
                assert 0 < decision.propensity <= 1 + 1e-9
                if not step.sequence:
                    assert {decision.worker, *decision.fallbacks} <= legal
        else:
            for each in (router, twin):
                each.observe(step, now_s)
            if isinstance(step, WorkerRemoved):
                in_flight = {number: each for number, each in in_flight.items() if each[0] != step.worker}
            if isinstance(step, Finished):
                in_flight.pop(step.number, None)
        assert_counts_balance(router, in_flight)
