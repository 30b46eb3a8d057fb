"""What a stranger wants who can make Envoy tell something, or speaks to the port of Envoy himself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.balancer_alone import WORKER, BalancerAlone
from support.running import running
from support.waiting import eventually

from balancer.extproc.names import OUTCOMES_SERVICE
from balancer.extproc.names import PICKS_SERVICE as PICKS
from balancer.stack.stack import read_samples

pytestmark = pytest.mark.integration


class Gateway(BalancerAlone):
    """And this test in the place of its gateway."""

    async def start(self) -> None:
        await super().start()
        self.channel = grpc.aio.insecure_channel(self.envoy)

    async def stop(self) -> None:
        await self.channel.close()
        await super().stop()

    async def pick(self, *more: ext_proc.ProcessingRequest) -> str:
        """Ask for a pick, and tell `more` of it; the number that it has."""
        request = ext_proc.ProcessingRequest()
        for key, value in {":path": "/v2/models/m/infer", ":method": "POST"}.items():
            request.request_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
        stream = self.channel.stream_stream(
            f"/{PICKS}/Process",
            request_serializer=ext_proc.ProcessingRequest.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )()
        await stream.write(request)
        response: Any = await stream.read()
        for message in more:
            await stream.write(message)
            await stream.read()
        await stream.done_writing()
        assert await stream.code() == grpc.StatusCode.OK
        return str(response.dynamic_metadata["balancer"]["number"])

    async def tell(self, *entries: accesslog_pb2.HTTPAccessLogEntry) -> None:
        """Send entries as Envoy's access log does."""
        call = self.channel.stream_unary(
            f"/{OUTCOMES_SERVICE}/StreamAccessLogs",
            request_serializer=als_pb2.StreamAccessLogsMessage.SerializeToString,
            response_deserializer=als_pb2.StreamAccessLogsResponse.FromString,
        )()
        message = als_pb2.StreamAccessLogsMessage()
        message.http_logs.log_entry.extend(entries)
        await call.write(message)
        await call.done_writing()
        await call


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path)
    async with running(gateway):
        yield gateway


def entry(
    number: str = "", status: int = 200, grpc_status: str = "", seconds: int = 0
) -> accesslog_pb2.HTTPAccessLogEntry:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.request.path = "/v2/models/m/infer"
    entry.response.response_code.value = status
    if grpc_status:
        entry.response.response_trailers["grpc-status"] = grpc_status
    common = entry.common_properties
    common.duration.seconds = seconds
    address = common.upstream_remote_address.socket_address
    address.address, address.port_value = WORKER["address"], WORKER["http_port"]
    if number:
        common.metadata.filter_metadata["balancer"].update({"process": "0", "number": number})
    return entry


async def test_an_outcome_of_the_process_before_does_not_end_a_request_of_this_one(gateway: Gateway) -> None:
    number = await gateway.pick()
    # As the former process counted, and as another run of this one writes it.
    await gateway.tell(entry("0"), entry("0123456789abcdef.0"))
    assert (await gateway.worker())["in_flight"] == 1
    await gateway.tell(entry(number))
    assert (await gateway.worker())["in_flight"] == 0


async def test_an_entry_that_cannot_be_read_does_not_cost_the_others(gateway: Gateway) -> None:
    number = await gateway.pick()
    hostile = [entry("9" * 5000), entry(grpc_status="9" * 5000), entry(grpc_status="\u00b2"), entry(seconds=10**11)]
    hostile[0].common_properties.metadata.filter_metadata["balancer"].fields["number"].list_value.SetInParent()
    await gateway.tell(*hostile, entry(seconds=-5), entry(number))
    worker = await gateway.worker()
    assert (worker["in_flight"], worker["error_rate"]) == (0, 0)
    assert worker["latency_s"] == 0
    assert await gateway.metric("balancer_handler_errors_total") == 0
    assert await gateway.metric("balancer_refused_inputs_total", message="outcome", field="latency_s") == 2


async def test_made_up_statuses_do_not_grow_the_metrics(gateway: Gateway) -> None:
    await gateway.tell(entry())
    before = len(await read_samples(gateway.url))
    for first in range(0, 20_000, 1000):
        await gateway.tell(*(entry(status=first + i, grpc_status=str((first + i) % 1000)) for i in range(1000)))
        await gateway.tell(*(entry(status=first + i) for i in range(1000)))
    assert await gateway.metric("balancer_requests_total") == 40_001
    # Known codes of HTTP and gRPC, and one line for all others of each.
    assert len(await read_samples(gateway.url)) - before < 100


@pytest.mark.parametrize(
    ("grpc_status", "status", "errors"),
    [
        ("13", "200", 1),
        ("3", "200", 0),
        ("1", "200", 1),
        ("", "404", 0),
    ],
)
async def test_an_error_that_another_gateway_reports_is_no_fast_success(
    gateway: Gateway, grpc_status: str, status: str, errors: int
) -> None:
    answer = ext_proc.ProcessingRequest()
    for key, value in {":status": status, "grpc-status": grpc_status}.items():
        if value:
            answer.response_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
    await gateway.pick(answer)
    await eventually(gateway.worker, "the outcome was counted", until=lambda worker: worker["in_flight"] == 0)
    assert await gateway.metric("balancer_errors_total", worker=WORKER["name"]) == errors
    # A fault's own slowness is a sign; what is no answer says nothing.
    assert await gateway.metric("balancer_request_duration_seconds_count") == 0
    assert errors or (await gateway.worker())["latency_s"] == 0
