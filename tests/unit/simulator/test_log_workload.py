"""A decision log as a workload."""

from pathlib import Path

import numpy as np
import pytest
from support.decision_logs import LIMITS, MODELS, UNIX_S, recorded, write
from support.fleets import report

from balancer.errors import OperatorError
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.decision_log.reading import read_log
from policies.base import Request
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice
from simulator.log.workload import arrivals_from_log
from simulator.scenario import load_scenario


def routed(folder: Path, process: str, requests: list[tuple[float, Request]], share: float = 1.0) -> None:
    router = Router(LeastRequests())
    for worker in range(2):
        router.observe(WorkerAdded(f"w{worker}"), 0.0)
        router.observe(report(f"w{worker}"), 0.0)
    files, recording = write(folder, router, process=process, share=share)
    for at_s, request in requests:
        try:
            decision = router.route(request, at_s)
            if not request.model or request.tenant == "probe":
                recording.no_inference(decision.number)
        except RoutingError:
            continue
    files.close(wait_s=30)


def test_the_arrivals_of_all_processes_are_one_workload(tmp_path: Path) -> None:
    routed(tmp_path, "0", [(1.0, Request("m", rows=4, key=9, tenant="b")), (3.0, Request("m", deadline_s=0.5))])
    other = [(2.0, Request("m", priority=10**300, tenant="a")), (2.5, Request("")), (2.6, Request("nobody's"))]
    routed(tmp_path, "1", [*other, (2.7, Request("m", tenant="probe"))])
    arrivals = arrivals_from_log(read_log(tmp_path), ["other", "m"])
    np.testing.assert_allclose(arrivals.time_s, [0, 1, 2], atol=1e-6)
    assert arrivals.model.tolist() == [1, 1, 1]
    assert arrivals.rows.tolist() == [4, 1, 1]
    assert arrivals.key.tolist() == [9, 0, 0]
    assert arrivals.deadline_s.tolist() == [np.inf, np.inf, 0.5]
    assert arrivals.priority.tolist() == [0, 32767, 0]
    assert arrivals.balancer.tolist() == [0, 1, 0]
    assert arrivals.tenant.tolist() == [2, 1, 0]
    assert arrivals.work.tolist() == [1, 1, 1]


def test_shed_requests_arrived_too(tmp_path: Path) -> None:
    log = recorded(tmp_path, RandomChoice(), settings=LIMITS, seed=8)
    shed = [refusal for refusal in log.refusals if refusal.reason == "shed"]
    assert shed
    unknown = [refusal for refusal in log.refusals if refusal.reason == "unknown_model"]
    assert len(arrivals_from_log(log, MODELS)) == len(log) + len(log.refusals) - len(unknown)
    assert log.runs[0].started_unix_s == UNIX_S


def test_what_is_no_workload_is_refused(tmp_path: Path) -> None:
    routed(tmp_path / "some", "0", [(1.0, Request("m"))] * 50, share=0.5)
    with pytest.raises(ValueError, match=r"share of 0.5 .* decision_log.share 1"):
        arrivals_from_log(read_log(tmp_path / "some"), ["m"])
    routed(tmp_path / "none", "0", [(1.0, Request(""))])
    with pytest.raises(ValueError, match="no request for a model"):
        arrivals_from_log(read_log(tmp_path / "none"), ["m"])
    routed(tmp_path / "all", "0", [(1.0, Request("m"))])
    with pytest.raises(ValueError, match="requests for m: give these models"):
        arrivals_from_log(read_log(tmp_path / "all"), ["x"])


SCENARIO = """\
summary: what was recorded
split: held-out
fleet:
  models:
    bert: {device_ms: {"*": {1: 5, 8: 10}}, batching: {max_batch_rows: 64}}
    tft: {device_ms: {"*": {1: 5, 8: 10}}, batching: {max_batch_rows: 64}}
  workers: [{count: 2}]
workload:
  rate_per_s: 50
  arrivals: {log: {path: LOG}}
  models: {bert: {}, tft: {}}
"""


def test_a_log_is_a_trace_for_scenarios(tmp_path: Path) -> None:
    log = recorded(tmp_path / "log", RandomChoice(), requests=200)
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("LOG", "log"))
    original = arrivals_from_log(log, MODELS)
    arrivals = load_scenario(tmp_path / "s.yaml").arrivals(seed=1, requests=len(original))
    for column in ("model", "rows", "key", "deadline_s", "priority", "tenant"):
        # The same requests, from another place on.
        assert sorted(getattr(arrivals, column)) == sorted(getattr(original, column)), column
    assert len(arrivals) / arrivals.time_s[-1] == pytest.approx(50, rel=0.1)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("LOG", "nowhere"))
    with pytest.raises(OperatorError, match=r"workload\.arrivals\.log: decision log 'nowhere'"):
        load_scenario(str(tmp_path / "s.yaml"))
