"""What `balancer up` and /recent call traffic and errors."""

from typing import Any

import pytest
from support.fleets import make_router

from balancer.discovery.workers import WorkerSpec
from balancer.extproc.outcomes import NOT_PICKED, Outcome
from balancer.extproc.picker import Addresses, Picker
from balancer.server.metrics import Metrics
from balancer.server.recorder import Recorder
from balancer.server.tally import OutcomeKey, Recent, summary

KEY = OutcomeKey("m", "w0", "wlpr")
UPSTREAM = "10.0.0.1:8001"


def recorder() -> Recorder:
    router = make_router(1)
    picker = Picker(router, lambda: 1.0, "0")
    picker.addresses = Addresses([WorkerSpec(name="w0", address="10.0.0.1", grpc_port=8001, http_port=8000)])
    return Recorder(router, picker, Metrics(router, lambda: 1.0), lambda: 1.0)


def outcome(path: str, upstream: str = UPSTREAM, **fields: Any) -> Outcome:
    known: dict[str, Any] = {
        "gateway_id": "",
        "model": "",
        "number": NOT_PICKED,
        "upstream": upstream,
        "path": path,
        "latency_s": 0.01,
        "first_byte_s": 0.01,
        "http_status": 200,
        "grpc_status": -1,
        "by": "",
        "bytes_in": 0,
        "bytes_out": 0,
        "attempts": int(bool(upstream)),
    }
    return Outcome(**(known | fields))


def after(*outcomes: Outcome) -> tuple[float, int]:
    """Requests and errors in the window."""
    taken = recorder()
    taken.outcomes(list(outcomes))
    span_s, parts = taken.recent.parts(1.0)
    found = summary(span_s, parts)
    return found.rate_per_s * span_s, found.errors


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/m", "/inference.GRPCInferenceService/ModelMetadata"])
@pytest.mark.parametrize("upstream", ["", UPSTREAM])
def test_probes_and_questions_are_no_traffic(path: str, upstream: str) -> None:
    assert after(outcome(path, upstream, http_status=503)) == (0, 0)


def test_inferences_that_a_worker_or_the_gateway_failed_are_errors() -> None:
    rest, rpc = "/v2/models/m/infer?x=1", "/inference.GRPCInferenceService/ModelInfer"
    assert after(outcome(rest), outcome(rpc, grpc_status=0)) == (2, 0)
    assert after(outcome(rest, http_status=503), outcome(rpc, grpc_status=14)) == (2, 2)
    # Nobody was there.
    assert after(outcome(rest, "", http_status=503), outcome(rpc, "", grpc_status=14)) == (2, 2)
    # Envoy found the request wrong: no route, header too large, too long.
    refused = [outcome(rest, "", http_status=status) for status in (404, 413, 431)]
    assert after(*refused, outcome(rpc, "", grpc_status=3))[1] == 0


def test_the_window_moves() -> None:
    recent = Recent(window_s=5.0)
    recent.add([0.0], [0.1], False, True, KEY)
    recent.add([4.0], [0.1], True, True, KEY)
    assert summary(*recent.parts(4.9)).errors == 1
    assert summary(*recent.parts(5.1)).errors == 0


def test_what_is_old_is_let_go_of_while_nobody_looks() -> None:
    recent = Recent(window_s=5.0)
    for at_s in range(1000):
        recent.add([float(at_s)] * 3, [0.1] * 3, True, True, KEY)
    assert len(recent._outcomes) == 6 * 3
