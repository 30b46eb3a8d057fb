from __future__ import annotations

import math

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2

from balancer.frontends.access_log import REFUSED, Outcome, outcome_of, worker_fault

NOTHING = outcome_of(accesslog_pb2.HTTPAccessLogEntry())


def test_an_empty_entry_is_an_outcome_of_nothing() -> None:
    assert math.isnan(NOTHING.first_byte_s)
    assert NOTHING._replace(first_byte_s=0) == Outcome(-1, "", 0, 0, 0, 0, -1, (), 0, 0, "", "", "", 0)
    assert not worker_fault(NOTHING)


def test_latency_is_the_workers_and_duration_is_the_clients() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    common.time_to_first_upstream_tx_byte.FromMilliseconds(100)
    common.time_to_first_upstream_rx_byte.FromMilliseconds(150)
    common.time_to_last_upstream_rx_byte.FromMilliseconds(1200)
    common.duration.FromMilliseconds(5000)
    outcome = outcome_of(entry)
    assert (outcome.latency_s, outcome.first_byte_s) == (pytest.approx(1.1), pytest.approx(0.05))
    assert outcome.duration_s == 5


def test_without_an_answer_latency_is_all_the_time_that_passed() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.time_to_first_upstream_tx_byte.FromMilliseconds(100)
    entry.common_properties.duration.FromMilliseconds(5000)
    assert outcome_of(entry).latency_s == 5


def test_addresses_are_written_as_envoy_writes_them() -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    address = entry.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "fd00::7", 8001
    assert outcome_of(entry).upstream == "[fd00::7]:8001"


def test_every_response_flag_of_the_api_has_its_abbreviation() -> None:
    flags = accesslog_pb2.ResponseFlags()
    for field in flags.DESCRIPTOR.fields:
        if field.message_type is None:
            setattr(flags, field.name, True)
        else:
            getattr(flags, field.name).SetInParent()
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.response_flags.CopyFrom(flags)
    assert all(flag.isupper() for flag in outcome_of(entry).flags)
    assert len(outcome_of(entry).flags) == len(flags.DESCRIPTOR.fields)


@pytest.mark.parametrize("number", ["", "x", "-1", "1.5"])
def test_a_decision_without_a_number_is_a_refusal(number: str) -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.common_properties.metadata.filter_metadata["balancer"].update({"number": number})
    assert outcome_of(entry).number == REFUSED


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


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        ({"http_status": 200, "grpc_status": 0}, False),
        ({"http_status": 200}, False),
        ({"http_status": 200, "grpc_status": 3}, False),
        ({"http_status": 200, "grpc_status": 4}, False),
        ({"http_status": 200, "grpc_status": 5}, False),
        ({"http_status": 200, "grpc_status": 2}, True),
        ({"http_status": 200, "grpc_status": 13}, True),
        ({"http_status": 200, "grpc_status": 14}, True),
        ({"http_status": 503}, True),
        ({"http_status": 500}, True),
        ({"http_status": 404}, False),
        ({"http_status": 400}, False),
        ({"http_status": 200, "grpc_status": 14, "flags": ("UF", "URX")}, True),
        ({"http_status": 200, "grpc_status": 14, "flags": ("UC",)}, True),
        ({"http_status": 200, "grpc_status": 0, "flags": ("UR",)}, True),
        ({"http_status": 0, "flags": ("DC",)}, False),
        ({"http_status": 0, "flags": ("DR", "UR")}, False),
        ({"http_status": 200, "grpc_status": 4, "flags": ("DT",)}, False),
        # Nobody was asked: Envoy or the balancer answered.
        ({"http_status": 503, "upstream": "", "flags": ("UH",)}, False),
        ({"http_status": 200, "grpc_status": 14, "upstream": ""}, False),
    ],
)
def test_whose_fault_it_is(outcome: dict[str, object], fault: bool) -> None:
    assert worker_fault(NOTHING._replace(**({"upstream": "10.0.0.1:8001"} | outcome))) is fault
