"""Whatever passes the gates, in whatever order: estimators stay finite and non-negative, and requests are served."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from balancer import bounds
from balancer.kernel.compiled.library import Compiled, Library, LibraryError
from balancer.kernel.python_kernel import Kernel
from balancer.kernel.settings import Limits, Settings
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event, Finished, ModelReport, Report, ReportsLost, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from balancer.scheduler.snapshot import snapshot
from policies import BUILTIN
from policies.base import Request

NAMES = ["a", "b", "c"]
MODELS = ["m", "n", "o"]

workers = st.sampled_from(NAMES)
counts = st.sampled_from([0, 1, 7, 1000, bounds.MAX_COUNT]) | st.integers(0, bounds.MAX_COUNT)
rows = st.sampled_from([1, 2, bounds.MAX_ROWS]) | st.integers(1, bounds.MAX_ROWS)
seconds = st.sampled_from([0.0, 1e-300, 1.0, bounds.MAX_COMPUTE_S]) | st.floats(0.0, bounds.MAX_COMPUTE_S)
pending = st.sampled_from([0.0, 1.0, bounds.MAX_PENDING]) | st.floats(0.0, bounds.MAX_PENDING)
model_reports = st.builds(
    ModelReport,
    st.sampled_from(MODELS),
    st.sampled_from(["1", "2"]),
    st.booleans(),
    pending=pending,
    executing=pending,
    succeeded=counts,
    failed=counts,
    max_batch_rows=rows,
    instances=st.sampled_from([1, bounds.MAX_INSTANCES]),
    batches=st.lists(st.tuples(rows, counts, seconds), max_size=4).map(tuple),
)
peers = st.tuples(st.sampled_from(MODELS), st.sampled_from([0, 1, int(bounds.MAX_PENDING)]))
reports = st.builds(
    Report,
    workers,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.lists(model_reports, max_size=4).map(tuple),
    balancers=st.sampled_from([1, 2, bounds.MAX_BALANCERS]),
    draining=st.booleans(),
    peers_in_flight=st.none() | st.lists(peers, max_size=2).map(tuple),
    stream=st.integers(0, 3),
)
membership = st.one_of(
    st.builds(WorkerAdded, workers, weight=st.floats(1e-3, 1e3), draining=st.booleans()),
    st.builds(WorkerRemoved, workers),
    st.builds(ReportsLost, workers),
)
finishes = st.builds(
    Finished,
    st.integers(-3, 60),
    st.sampled_from(["", "stranger", *NAMES]),
    st.none() | st.sampled_from([0.0, 1e-300, bounds.MAX_LATENCY_S]) | st.floats(0.0, bounds.MAX_LATENCY_S),
    st.booleans(),
    st.sampled_from(["", "client", "deadline", "request"]),
)
requests = st.builds(
    Request,
    st.sampled_from([*MODELS, "unknown", ""]),
    version=st.sampled_from(["", "1", "x" * bounds.MAX_TEXT_BYTES]),
    rows=rows,
    key=st.integers(0, 2**64 - 1),
    deadline_s=st.sampled_from([1e-9, bounds.MAX_DEADLINE_S, float("inf")]),
    priority=st.sampled_from([0, 1, bounds.MAX_PRIORITY]),
    sequence=st.booleans(),
)
steps = st.lists(st.one_of(reports, reports, membership, finishes, requests, requests), max_size=50)
gaps = st.lists(st.sampled_from([0.0, 1e-9, 0.05, 2.0, 400.0, 1e6]), min_size=50, max_size=50)


def in_python() -> Kernel:
    return Kernel()


def by_the_library() -> Kernel:
    try:
        return Compiled(Library())
    except LibraryError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kernel", [in_python, by_the_library])
@settings(max_examples=examples(200), deadline=None)
@given(
    steps=steps,
    policy=st.sampled_from(sorted(BUILTIN)),
    gaps=gaps,
    limits=st.sampled_from([Limits(), Limits(max_pending_per_worker=3, shed_late=True)]),
)
def test_estimators_stay_finite_and_honest_requests_are_served(
    kernel: Callable[[], Kernel], steps: list[Event | Request], policy: str, gaps: list[float], limits: Limits
) -> None:
    router = Router(BUILTIN[policy](), Settings(limits=limits), kernel=kernel())
    now_s = 0.0
    for name in NAMES:
        router.observe(WorkerAdded(name), now_s)
    for step, gap in zip(steps, gaps, strict=False):
        now_s += gap
        if isinstance(step, Request):
            with contextlib.suppress(RoutingError):
                router.route(step, now_s)
        else:
            router.observe(step, now_s)
        router.tick(now_s)
        _assert_sound(router, now_s)
    assert not router.failures
    # Whatever was said before: a worker that is there and reports is served by policy.
    now_s += 400.0
    router.tick(now_s)
    router.configure(BUILTIN[policy](), Settings())
    router.observe(WorkerAdded("honest"), now_s)
    report = Report("honest", 1, 1, True, (ModelReport("mine", "1", True),), stream=1)
    router.observe(report, now_s)
    assert router.route(Request("mine", key=1), now_s).worker == "honest"
    assert not router.failures


def _assert_sound(router: Router, now_s: float) -> None:
    fleet = router.fleet
    for state in (fleet.queue, fleet.service, fleet.latency, fleet.tokens):
        for field in dataclasses.fields(state):
            _assert_in_range(field.name, getattr(state, field.name))
    for worker in snapshot(router, now_s):
        for name in ("in_flight", "pending", "backlog_s", "latency_s", "error_rate"):
            assert 0.0 <= worker[name] < np.inf, (name, worker[name])
    assert 0.0 <= fleet.latency.errors.max(initial=0.0) <= 1.0


def _assert_in_range(name: str, values: Any) -> None:
    if name in ("progress_s", "peer_counted_s", "level"):  # infinite while nothing happened yet
        assert not np.isnan(values).any(), name
    elif not name.startswith("profile_"):  # not a number: nothing was measured beforehand
        assert np.isfinite(values).all(), (name, values)
        assert (values >= -1e-6 * np.abs(values).max(initial=1.0)).all(), (name, values)
