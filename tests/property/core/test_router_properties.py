"""Whatever happens in whatever order, the router's books balance and its decisions are legal."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import model, report

from balancer.core.errors import RoutingError
from balancer.core.events import Event, Finished, ReportsLost, WorkerAdded, WorkerRemoved
from balancer.core.router import Router
from balancer.core.settings import Settings
from balancer.core.shown import reasons
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
        [model(name, pending=pending, executing=1.0, max_batch_rows=4, batches=some) for name in MODELS],
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


@settings(max_examples=150, deadline=None)
@given(steps=steps, policy=st.sampled_from(sorted(BUILTIN)), gaps=st.lists(st.floats(0, 0.3), min_size=60, max_size=60))
def test_books_balance_and_decisions_are_legal(steps: list[Event | Request], policy: str, gaps: list[float]) -> None:
    router = Router(BUILTIN[policy](), Settings())
    twin = Router(BUILTIN[policy](), Settings())
    open_at: dict[int, str] = {}
    now_s = 0.0
    for name in NAMES:
        for each in (router, twin):
            each.observe(WorkerAdded(name), now_s)
            each.observe(report(name, 0, [model(m) for m in MODELS]), now_s)
    for step, gap in zip(steps, gaps, strict=False):
        now_s += gap
        if isinstance(step, Request):
            legal = {name for name, why in reasons(router, step, now_s).items() if not why}
            outcomes = []
            for each in (router, twin):
                try:
                    outcomes.append(each.route(step, now_s))
                except RoutingError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]
            if not isinstance(outcomes[0], str):
                decision = outcomes[0]
                open_at[decision.number] = decision.worker
                assert 0 < decision.propensity <= 1 + 1e-9
                if not step.sequence:
                    assert {decision.worker, *decision.fallbacks} <= legal
        else:
            for each in (router, twin):
                each.observe(step, now_s)
            if isinstance(step, WorkerRemoved):
                open_at = {number: worker for number, worker in open_at.items() if worker != step.worker}
            if isinstance(step, Finished):
                open_at.pop(step.number, None)
        q = router.fleet.queue
        counts = [sum(worker == name for worker in open_at.values()) for name in router.fleet.names]
        np.testing.assert_array_equal(q.in_flight, counts)
        np.testing.assert_allclose(q.own_work_s, q.own_work_model_s.sum(axis=1), atol=1e-6)
        assert (q.own_work_s >= -1e-9).all()
        assert not router.failures
