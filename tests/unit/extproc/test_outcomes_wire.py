from __future__ import annotations

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from balancer.extproc.wire import read_message


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
