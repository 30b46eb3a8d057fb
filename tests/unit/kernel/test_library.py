"""The compiled kernel: what fits is loaded, what does not is refused in words, and serving needs no compiler."""

import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from support.fleets import model, report
from support.strangers import stranger

from balancer.bounds import MAX_FALLBACKS
from balancer.config.config import Config
from balancer.kernel.compiled import library
from balancer.kernel.compiled.library import Compiled, Library, LibraryError
from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.settings import GuardSettings, Limits, Settings
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.events import Finished, Withdrawn, WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.app import App
from policies.base import Request, uniform_over
from policies.learned.loops import weights_of
from policies.learned.network import untrained
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin
from policies.traced import traced


def test_the_app_decides_by_the_library() -> None:
    assert App(Config(), None).router.fleet.kernel.compiled


def test_without_a_library_it_decides_in_python_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library.Library.__init__, "__defaults__", (tmp_path / "kernel.so",))
    assert not App(Config(), None).router.fleet.kernel.compiled
    (message,) = [record.getMessage() for record in caplog.records if "Python" in record.getMessage()]
    assert "there is no kernel.so" in message
    assert "python -m balancer.kernel.compiled.build" in message


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "stamp", lambda: "another")
    with pytest.raises(LibraryError, match="built from other sources"):
        Library()


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel.so"
    path.write_text("no library")
    with pytest.raises(LibraryError, match="cannot be loaded"):
        Library(path)


def test_as_many_fallbacks_are_named_as_may_be_configured() -> None:
    settings = Settings(reports_required=False, max_fallbacks=MAX_FALLBACKS)
    for kernel in (None, Compiled(Library())):
        router = Router(RoundRobin(), settings, kernel=kernel)
        for number in range(MAX_FALLBACKS + 4):
            router.observe(WorkerAdded(f"w{number}"), 0.0)
        assert len(router.route(Request("m"), 0.0).fallbacks) == MAX_FALLBACKS


def test_a_program_s_answer_that_is_none_is_replaced_and_counted() -> None:
    policy = stranger(lambda request, fleet: uniform_over(fleet.eligible) / np.where(request.rows == 777.0, 0.0, 1.0))
    assert traced(policy).program is not None
    for kernel in (None, Compiled(Library())):
        router = Router(policy, Settings(reports_required=False), kernel=kernel)
        for number in range(3):
            router.observe(WorkerAdded(f"w{number}"), 0.0)
        for rows in (1.0, 777.0, 1.0):
            assert router.route(Request("m", rows=rows), 0.0).worker in router.fleet.names
        assert router.failures == {policy.name: 1}
        assert "probabilities sum to" in router.last_failure


def test_serving_imports_no_compiler_and_no_training() -> None:
    code = (
        "import sys; from balancer.server.app import App; from balancer.config.config import Config; "
        "assert App(Config(), None).router.fleet.kernel.compiled; "
        "print([name for name in ('numba', 'llvmlite', 'torch', 'gymnasium') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_code_is_for_networks_of_any_size() -> None:
    """Each more would be minutes of compiling."""
    kinds = {Native(weights_of(untrained(hidden))).numba_type for hidden in (0, 1, 8)}
    assert len(kinds) == 1


def test_a_new_column_changes_nobody_s_eligibility() -> None:
    router = Router(RoundRobin(), kernel=Compiled(Library()))
    router.observe(WorkerAdded("w0"), 0.0)
    router.observe(report("w0", 1), 0.0)
    assert router.route(Request("m"), 0.0).worker == "w0"
    router.observe(report("w0", 2, [model(), model("loading", ready=False)]), 0.1)
    assert router.route(Request("m"), 0.1).worker == "w0"


@pytest.mark.parametrize("compiled", [False, True])
def test_who_was_left_out_by_limits_is_picked_again_after_the_fleet_has_changed(compiled: bool) -> None:
    limits = Limits(max_pending_per_worker=1.0)
    router = Router(RandomChoice(), Settings(limits=limits), kernel=Compiled(Library()) if compiled else None)
    for worker in ("w0", "w1", "w2"):
        router.observe(WorkerAdded(worker), 0.0)
    for worker in ("w0", "w1"):
        router.observe(report(worker), 0.0)
    for _ in range(2):
        router.observe(Withdrawn(router.route(Request("m"), 0.0).number), 0.0)
    sent = [router.route(Request("m"), 0.0)]
    # As many may be picked as before it came, since another is full.
    router.observe(report("w2"), 0.0)
    sent.append(router.route(Request("m"), 0.0))
    for decision in sent:
        router.observe(Finished(decision.number, decision.worker, 0.01, True), 0.0)
    assert router.route(Request("m"), 0.0).propensity == 1 / 3


@pytest.mark.parametrize("compiled", [False, True])
def test_slow_decisions_are_seen_whoever_makes_them(compiled: bool) -> None:
    policy, clock = RoundRobin(), count()
    router = Router(policy, Settings(reports_required=False), kernel=Compiled(Library()) if compiled else None)
    plan = CanaryPlan(guard=GuardSettings(decision_s=0.5, report_share=1.0), baseline=LeastRequests())
    selector = PolicySelector(policy, plan, stopwatch=lambda: float(next(clock)))
    router.configure(policy, router.settings, selector)
    router.observe(WorkerAdded("w0"), 0.0)
    decided_by = [router.route(Request("m"), number * 1e-6).policy for number in range(200)]
    assert selector.guard is not None
    assert selector.guard.breach is not None
    assert selector.guard.breach.finding.reason == "slow"
    assert decided_by[0] == "round_robin"
    assert decided_by[-1] == "least_requests"
