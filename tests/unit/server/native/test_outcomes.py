"""What is told of decisions within Envoy, taken to metrics: a row of the ring at a time."""

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.exposition import Samples, counted

from balancer.kernel.compiled.library import Library
from balancer.kernel.settings import Settings
from balancer.native.enums import Decider, Source
from balancer.native.envoy_module import Module
from balancer.native.layouts import ENDERS, OUTCOME, PORTS, VOIDS
from balancer.native.router import SharedRouter
from balancer.native.state import Folder
from balancer.scheduler.events import WorkerAdded
from balancer.server.metrics import Metrics
from balancer.server.native.front import native_metrics
from balancer.server.native.outcomes import NativeOutcomes
from balancer.server.tally import Recent, Tally
from policies import BUILTIN

Take = Callable[..., Callable[[str], Samples]]


@pytest.fixture
def router(tmp_path: Path) -> SharedRouter:
    library = Library()
    settings = Settings(reports_required=False)
    router = SharedRouter(BUILTIN["wlpr"](), settings, 7, library, Module(library), Folder(tmp_path / "shared"))
    router.observe(WorkerAdded("w0"), time.monotonic())
    router.fleet.add_models(["m"])
    return router


@pytest.fixture
def take(router: SharedRouter) -> Take:
    """Take one outcome in; then values of metrics by their labels."""
    metrics = Metrics(router, lambda: 1.0)
    metrics.register(lambda: native_metrics(router))
    outcomes = NativeOutcomes(router, Tally(metrics, Recent()), None, None, None)  # type: ignore[arg-type]  # none is wanted
    router.list_endpoints({"grpc": {"w0": "10.0.0.1:8001"}, "http": {"w0": "10.0.0.1:8000"}})

    def taken(**fields: Any) -> Callable[[str], Samples]:
        row = np.zeros(1, OUTCOME)
        usual = {
            "latency_s": 0.02,
            "first_byte_s": 0.01,
            "decision_s": 3e-6,
            "pick_s": 1e-4,
            "port": PORTS.index("grpc"),
            "attempts": 1,
        }
        usual |= {"source": Source.BY_POLICY, "http_status": 200, "ok": 1, "matched": 1, "endpoint": b"10.0.0.1:8001"}
        for name, value in (usual | {"column": router.fleet.models["m"]} | fields).items():
            row[name] = value
        outcomes.take(row)
        return functools.partial(counted, metrics)

    return taken


@pytest.mark.parametrize("by", ["client", "worker", "deadline", "gateway"])
def test_who_ended_it(take: Take, by: Any) -> None:
    samples = take(aborted=ENDERS.index(by), ok=0, void_kind=VOIDS.index("client"), latency_s=math.nan)
    assert samples("balancer_aborted_requests_total") == {(by,): 1}
    assert samples("balancer_errors_total") == {}


def test_who_decided(take: Take, router: SharedRouter) -> None:
    """Also where another policy is in force by the time that the request ends."""
    before = router.directory.serial
    router.configure(BUILTIN["random"](), router.settings)
    take(directory=before)
    take(decider=Decider.SEQUENCES)
    samples = take(directory=router.directory.serial)
    assert samples("balancer_decisions_total") == {("wlpr",): 1, ("consistent_hash",): 1, ("random",): 1}


def test_what_envoy_placed_and_what_was_tried_again(take: Take) -> None:
    take(source=Source.BY_LEAST_REQUEST, matched=0, decision_s=math.nan)
    samples = take(attempts=3)
    assert samples("balancer_fallbacks_total") == {("no_pick",): 1, ("retried",): 1}
    assert samples("balancer_outcomes_total") == {("matched",): 1, ("unmatched",): 1}
    assert samples("balancer_decision_duration_seconds_count") == {(): 1}


def test_what_the_module_counts(take: Take, router: SharedRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = router.state.counts() | {"picked": 5, "least_locked": 2, "outcomes_lost": 1, "canary_events_lost": 3}
    monkeypatch.setattr(router.state, "counts", lambda: counts)
    samples = take()
    assert samples("balancer_native_requests_total") == {("picked",): 5, ("least_locked",): 2}
    assert samples("balancer_native_lost_total") == {("outcomes",): 1, ("canary_events",): 3}


def test_counts_survive_another_state(router: SharedRouter) -> None:
    assert router.state.lock()
    before = router.state.counts()
    router.tick(time.monotonic())
    assert router.replaced == 1
    assert router.state.counts() == before
