import math
from typing import Any
from unittest.mock import Mock

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from balancer.extproc.outcomes import (
    _ABORTED,
    OF_ANOTHER_RUN,
    REFUSED,
    AccessLog,
    Outcome,
    answer_of,
    outcome_of,
    verdict_of,
)
from balancer.extproc.wire import read_message

NOTHING = outcome_of(accesslog_pb2.HTTPAccessLogEntry())


def test_an_empty_entry_is_an_outcome_of_nothing() -> None:
    assert math.isnan(NOTHING.first_byte_s)
    assert NOTHING._replace(first_byte_s=0) == Outcome(-1, "", 0, 0, 0, -1, "", 0, 0, "", "", "", 0)
    assert verdict_of(NOTHING) == (False, "client")


def test_latency_is_the_workers() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    common.time_to_first_upstream_tx_byte.FromMilliseconds(100)
    common.time_to_first_upstream_rx_byte.FromMilliseconds(150)
    common.time_to_last_upstream_rx_byte.FromMilliseconds(1200)
    common.duration.FromMilliseconds(5000)
    outcome = outcome_of(entry)
    assert (outcome.latency_s, outcome.first_byte_s) == (pytest.approx(1.1), pytest.approx(0.05))


def test_without_an_answer_latency_is_all_the_time_that_passed() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.time_to_first_upstream_tx_byte.FromMilliseconds(100)
    entry.common_properties.duration.FromMilliseconds(5000)
    assert outcome_of(entry).latency_s == 5


def answered(*, last: bool = False, periodic: bool = False, begun: bool = True, sent: bool = True) -> Any:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    common.access_log_type = accesslog_pb2.UpstreamPeriodic if periodic else accesslog_pb2.UpstreamEnd
    common.time_to_first_upstream_tx_byte.FromMilliseconds(100)
    if sent:
        common.time_to_last_upstream_tx_byte.FromMilliseconds(110)
    if begun:
        entry.response.response_code.value = 200
        common.time_to_first_upstream_rx_byte.FromMilliseconds(150)
    if last:
        common.time_to_last_upstream_rx_byte.FromMilliseconds(1200)
    return entry


def test_a_worker_is_done_when_its_answer_has_ended_or_nobody_takes_it_or_nobody_sends_it_the_rest() -> None:
    whole, unread = answer_of(answered(last=True)), answer_of(answered(periodic=True))
    assert whole is not None
    assert unread is not None
    assert (whole.latency_s, unread.latency_s) == (pytest.approx(1.1), pytest.approx(0.05))
    stopped = answer_of(answered(periodic=True, begun=False, sent=False))
    assert stopped is not None
    assert stopped.http_status == 0


def test_a_worker_that_works_or_was_left_is_not_done() -> None:
    assert answer_of(answered(periodic=True, begun=False)) is None
    assert answer_of(answered()) is None
    broken, tried_again = answered(last=True), answered(last=True)
    broken.common_properties.response_flags.upstream_connection_termination = True
    tried_again.response.response_headers["grpc-status"] = "5"
    assert answer_of(broken) is answer_of(tried_again) is None


def test_addresses_are_written_as_envoy_writes_them() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    address = entry.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "fd00::7", 8001
    assert outcome_of(entry).upstream == "[fd00::7]:8001"


def test_flags_say_who_ended_a_request_the_client_before_all_others() -> None:
    for by, names in _ABORTED:
        for name in names:
            entry = accesslog_pb2.HTTPAccessLogEntry()
            setattr(entry.common_properties.response_flags, name, True)
            assert outcome_of(entry).by == by
            entry.common_properties.response_flags.downstream_remote_reset = True
            assert outcome_of(entry).by == "client"
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.response_flags.no_healthy_upstream = True
    assert outcome_of(entry).by == ""


def of_number(number: str, run: str) -> int:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.metadata.filter_metadata["balancer"].update({"number": number})
    return outcome_of(entry, run).number


@pytest.mark.parametrize("number", ["", "x", "7", "-1", "A.5", "a1.", "a1.-1", "a1." + "9" * 5000, "a1.\u0663"])
def test_a_decision_without_a_number_is_a_refusal(number: str) -> None:
    assert of_number(number, "a1") == REFUSED


def test_a_number_belongs_to_the_run_that_gave_it() -> None:
    assert of_number("a1.7", "a1") == 7
    assert of_number("b2.7", "a1") == OF_ANOTHER_RUN


class Listening(Mock):
    """Notes what it is called with."""

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(name, arguments[0]) for name, arguments, _ in self.method_calls]


@pytest.mark.parametrize("seconds", [-1, 86_401, 10**11])
def test_a_latency_out_of_bounds_is_counted_and_left_out(seconds: int) -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.duration.seconds = seconds
    listening = Listening()
    AccessLog(listening)._take([entry])
    (refused, field), (_, (outcome,)) = listening.calls
    assert (refused, field) == ("out_of_bounds", "latency_s")
    assert math.isnan(outcome.latency_s)


TRACE, SPAN = "ab" * 16, "cd" * 8


@pytest.mark.parametrize(
    ("parent", "trace"),
    [
        (f"00-{TRACE}-{SPAN}-01", TRACE),
        (f"00-{TRACE}-{SPAN}-03", TRACE),
        (f"00-{TRACE}-{SPAN}-00", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{TRACE.upper()}-{SPAN}-01", ""),
        (f"00-{TRACE}-{SPAN}-01\n", ""),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"00-{TRACE[:-1]}\u0661-{SPAN}-01", ""),
        (f'00-{TRACE[:-2]}"}}-{SPAN}-01', ""),
        ("0" * 100_000, ""),
        ("", ""),
    ],
)
def test_a_trace_is_what_the_standard_says_and_sampled(parent: str, trace: str) -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.request.request_headers["traceparent"] = parent
    assert outcome_of(entry).trace == trace


async def test_what_the_module_counts_is_not_counted_again() -> None:
    class FakeStream:
        """Two messages, of which only the first says whose log it is."""

        def __init__(self, log_name: str) -> None:
            self.messages = [als_pb2.StreamAccessLogsMessage() for _ in range(2)]
            self.messages[0].identifier.log_name = log_name
            for message in self.messages:
                for number in range(10):
                    entry = message.http_logs.log_entry.add()
                    entry.request.path = f"/v2/models/m{number}/infer"
                    entry.request.request_headers["traceparent"] = f"00-{TRACE}-{SPAN}-0{number % 2}"

        async def read(self) -> als_pb2.StreamAccessLogsMessage | None:
            return self.messages.pop(0) if self.messages else None

    listening = Listening()
    for log_name in ("traced", "outcomes"):
        context: Any = FakeStream(log_name)
        await AccessLog(listening)._serve(None, context)
    received = listening.calls
    assert [(kind, [each.model for each in some]) for kind, some in received[:2]] == [("traced", ["m7", "m9"])] * 2
    assert [(kind, len(some)) for kind, some in received[2:]] == [("outcomes", 10)] * 2


@pytest.mark.parametrize("status", ["\u00b2", "9" * 5000, "-1", "", "x"])
def test_a_grpc_status_that_is_none_is_none(status: str) -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.response.response_headers["grpc-status"] = status
    assert outcome_of(entry).grpc_status == -1


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v2/models/m", "m"),
        ("/v2/models/m/infer", "m"),
        ("/v2/models/a%2Fb/versions/1/infer?x=/v2/models/y", "a/b"),
        ("/v2/models/m?x", "m"),
        ("/v2/models/stats", "stats"),
        ("/v2/health/ready", ""),
        ("/v2", ""),
        ("", ""),
    ],
)
def test_the_model_of_a_rest_path(path: str, model: str) -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.request.path = path
    assert outcome_of(entry).model == model


ANSWER, FAULT, CLIENT, DEADLINE = (True, ""), (False, ""), (False, "client"), (False, "deadline")
REQUEST = (False, "request")


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        ({"http_status": 200, "grpc_status": 0}, ANSWER),
        ({"http_status": 200}, ANSWER),
        ({"http_status": 200, "grpc_status": 1}, FAULT),
        ({"http_status": 200, "grpc_status": 1, "by": "client"}, CLIENT),
        ({"http_status": 200, "grpc_status": 3}, CLIENT),
        ({"http_status": 200, "grpc_status": 4}, DEADLINE),
        ({"http_status": 200, "grpc_status": 5}, CLIENT),
        ({"http_status": 200, "grpc_status": 2}, REQUEST),
        ({"http_status": 200, "grpc_status": 13}, REQUEST),
        ({"http_status": 200, "grpc_status": 14}, FAULT),
        ({"http_status": 200, "grpc_status": 999}, CLIENT),
        ({"http_status": 503}, FAULT),
        ({"http_status": 500}, REQUEST),
        ({"http_status": 504}, DEADLINE),
        ({"http_status": 404}, CLIENT),
        ({"http_status": 400}, CLIENT),
        ({"http_status": 431}, CLIENT),
        ({"http_status": 4_000_000_000}, CLIENT),
        ({"http_status": 200, "grpc_status": 14, "by": "worker"}, FAULT),
        ({"http_status": 200, "grpc_status": 0, "by": "worker"}, FAULT),
        ({"http_status": 0, "by": "client"}, CLIENT),
        ({"http_status": 200, "grpc_status": 4, "by": "deadline"}, DEADLINE),
        ({"http_status": 503, "by": "gateway"}, CLIENT),
        # Nobody was asked: Envoy or the balancer answered.
        ({"http_status": 503, "upstream": ""}, CLIENT),
        ({"http_status": 200, "grpc_status": 14, "upstream": ""}, CLIENT),
    ],
)
def test_what_it_says_of_the_worker(outcome: dict[str, object], verdict: tuple[bool, str]) -> None:
    assert verdict_of(NOTHING._replace(**({"upstream": "10.0.0.1:8001"} | outcome))) == verdict


def message(*ids: str) -> als_pb2.StreamAccessLogsMessage:
    sent = als_pb2.StreamAccessLogsMessage()
    sent.identifier.log_name = "outcomes"
    for number, request_id in enumerate(ids):
        entry = sent.http_logs.log_entry.add()
        entry.common_properties.duration.FromMilliseconds(number + 1)
        entry.common_properties.stream_id = request_id
        entry.request.path = "/v2/models/m/infer"
        entry.request.request_id = request_id
        entry.request.request_headers["x-gateway-request-id"] = request_id
        entry.response.response_code.value = 200 + number
    return sent


def test_an_entry_that_quotes_what_is_no_text_is_read_without_it_and_others_whole() -> None:
    sent = message("honest", "@@@@", "also honest")
    sent.http_logs.log_entry[1].request.request_headers["x-made-by-envoy"] = "an id"
    whole = read_message(sent.SerializeToString().replace(b"@@@@", b"a\xff\xfeb"))
    assert whole.identifier == sent.identifier
    read = whole.http_logs.log_entry
    assert [read[0], read[2]] == [sent.http_logs.log_entry[0], sent.http_logs.log_entry[2]]
    bare = accesslog_pb2.HTTPAccessLogEntry()
    bare.CopyFrom(sent.http_logs.log_entry[1])
    bare.common_properties.ClearField("stream_id")
    bare.request.ClearField("request_id")
    del bare.request.request_headers["x-gateway-request-id"]
    assert read[1] == bare


@given(st.binary(max_size=200))
def test_what_is_no_message_is_refused_and_nothing_else_happens(garbage: bytes) -> None:
    try:
        read_message(garbage)
    except DecodeError:
        return
    assert als_pb2.StreamAccessLogsMessage.FromString(garbage) is not None


@pytest.mark.parametrize("cut", [b"\x12", b"\x12\x05ab", b"\x0b", b"\x08" + b"\xff" * 11])
def test_what_is_cut_off_is_no_message(cut: bytes) -> None:
    with pytest.raises(DecodeError):
        read_message(message("a").SerializeToString() + cut)
