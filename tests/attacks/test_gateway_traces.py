"""What a stranger tries with the headers of a trace, by either front end: a real Envoy, a real receiver of spans."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from support.guarded_listener import by_front, grpc_status, guarded, rest_status
from support.otlp import OtlpReceiver
from support.waiting import eventually

from balancer.bootstrap.sections import TracesSection

pytestmark = pytest.mark.integration
GOOD = f"00-{'ab' * 16}-{'cd' * 8}-01"
BAD = (
    "",
    "00",
    "-" * 55,
    GOOD[:-1],
    GOOD + "0" * 1000,
    f"ff-{'ab' * 16}-{'cd' * 8}-01",
    f"00-{'0' * 32}-{'0' * 16}-01",
    f"00-{'zz' * 16}-{'cd' * 8}-01",
    f"00-{'ab' * 16}-{'cd' * 8}-zz",
    "00-\xe4\xe4-x-01",
)
"""Each is no W3C trace context, or one that says nothing."""
MOST_ATTRIBUTE_CHARACTERS = 256
"""Envoy's own bound of what a header may put into a span."""


@by_front
async def test_a_stranger_cannot_fail_requests_or_bloat_spans_with_the_headers_of_a_trace(
    tmp_path: Path, front: str
) -> None:
    receiver = OtlpReceiver()
    await receiver.start()
    traces = TracesSection(collector=f"127.0.0.1:{receiver.grpc_port}", share=1.0)
    try:
        async with guarded(front, tmp_path, traces=traces).running() as rig:
            for parent in BAD:
                assert (await rest_status(rig, {"traceparent": parent}))[0] == 200, parent
                if parent.isascii():
                    assert (await grpc_status(rig, traceparent=parent))[0] == grpc.StatusCode.OK, parent
            long = {"tracestate": "a=" + "b" * 1200, "user-agent": "u" * 1200, "x-request-id": "r" * 200}
            for headers in ({"traceparent": GOOD, **long}, long, {"tracestate": ",=,=\x09"}):
                assert (await rest_status(rig, headers))[0] == 200
            path = "/v2/models/m/infer?" + "q" * 1000
            assert (await rest_status(rig, {"traceparent": GOOD}, path=path))[0] == 200
            last = "12" * 16
            assert (await rest_status(rig, {"traceparent": GOOD.replace("ab" * 16, last)}))[0] == 200
            # Spans come in the order of the requests' ends.
            await eventually(lambda: bool(receiver.of(last, "gateway")), "the last request's span has come")
    finally:
        await receiver.stop()
    values = [value for span in receiver.spans for value in span.attributes.values()]
    assert values
    assert max(map(len, values)) <= MOST_ATTRIBUTE_CHARACTERS + len("http://") + 64
    # Whatever a client made up, ids are ids.
    assert all(len(span.trace) == 32 and int(span.trace, 16) for span in receiver.spans)
