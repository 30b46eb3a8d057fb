"""What a stranger tries with the headers of a trace, by either front end, and with the ids of requests."""

import asyncio
from pathlib import Path

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.envoy_fakes import Rig
from support.guarded_listener import by_front, grpc_status, guarded, rest_status
from support.otlp import OtlpReceiver
from support.waiting import eventually

from balancer.bootstrap.sections import TracesSection
from balancer.extproc.names import GATEWAY_REQUEST_ID_HEADER

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


def ids(request: ext_proc.ProcessingRequest) -> list[str]:
    headers = request.request_headers.headers.headers
    return [header.raw_value.decode() for header in headers if header.key == GATEWAY_REQUEST_ID_HEADER]


async def test_a_stranger_cannot_choose_the_id_that_the_balancer_goes_by(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.running():
        forged = [
            [],
            [(GATEWAY_REQUEST_ID_HEADER, "mine")],
            [(GATEWAY_REQUEST_ID_HEADER, "mine"), (GATEWAY_REQUEST_ID_HEADER, "mine too")],
            [("x-request-id", "mine"), (GATEWAY_REQUEST_ID_HEADER, "")],
            [("x-request-id", "mine")],
        ]
        for metadata in forged:
            await rig.infer(metadata=metadata)
        url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
        for _ in range(2):
            async with rig.http.post(url, data=b"{}", headers={"X-Gateway-Request-Id": "mine"}) as response:
                assert response.status == 200
        (balancer,) = rig.balancers
        sent = [ids(request) for request in balancer.seen]
        assert [len(each) for each in sent] == [1] * 7
        unique = {each[0] for each in sent}
        assert len(unique) == 7
        # UUIDs; and how each request ended is told under the same.
        assert {len(one) for one in unique} == {36}
        assert {(await asyncio.wait_for(balancer.outcomes.get(), 10)).gateway_id for _ in sent} == unique
