"""Budgets, breakers and latencies, shapes from outside, and how sure an answer says it is, by hand-computed cases."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.bounds import RefusedInputError
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.proxy.attempts import wait_s
from balancer.proxy.breakers import AttemptLatencies, Breakers
from balancer.proxy.cascading import MOST_BYTES, confidence
from balancer.proxy.messages import MOST_RANK, TEXT, elements
from balancer.proxy.rest.reading import WantedOutputs, read_request
from balancer.proxy.rest.service import UnwritableError, json_parts
from balancer.proxy.settings import ProxyConstants, ProxySection, ProxySettings, TenantsSection
from balancer.proxy.tenants import TenantLimits


@given(st.integers(1, 100), st.floats(0, 1))
def test_waits_double_within_their_bound(attempt: int, chance: float) -> None:
    constants = ProxyConstants(retry_base_s=0.01, retry_max_s=0.1)
    assert 0 <= wait_s(constants, attempt, chance) <= 0.1
    assert wait_s(constants, 1, 0.5) == 0.01
    assert wait_s(constants, 2, 0.5) == 0.02


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 50), st.integers(0, 90)), max_size=60))
@pytest.mark.parametrize("what", ["rows_per_s", "tokens_per_s"])
def test_no_tenant_gets_more_than_its_rate_and_one_burst(what: str, events: list[tuple[float, int, int]]) -> None:
    now_s, used = 0.0, 0
    tenants = TenantLimits(lambda: now_s, lambda: None)
    tenants.configure(ProxySettings(ProxySection(tenants=TenantsSection.model_validate({what: 20.0}))))
    for pause_s, asked, told in events:
        now_s += pause_s
        call = read_call({":path": "/v2/models/m/infer"}, {}, HeaderNames())
        call = replace(call, message_rows=asked) if what == "rows_per_s" else call.with_prompt(asked, ())
        if tenants.turned_away(call) is None:
            tenants.settle(call, float(told), 0.0, answered=True, left=False)
            used += asked if what == "rows_per_s" else told or asked
    # One request may be larger than what was left: it is paid for afterwards.
    assert used <= 20 + 20 * now_s + 90


def test_a_breaker_opens_tries_and_closes() -> None:
    breakers = Breakers(2, open_s=1)
    breakers.ended("m", "w", 0, False, 0.0)
    assert not breakers.shut("m", 0.0)
    breakers.ended("m", "w", 1, None, 0.0)
    breakers.ended("m", "w", 2, False, 0.0)
    assert breakers.shut("m", 0.5) == {"w"}
    assert not breakers.shut("other", 0.5)
    breakers.ended("m", "w", 3, True, 0.6)  # sent before it opened
    assert breakers.shut("m", 0.9) == {"w"}
    assert not breakers.shut("m", 1.0)
    breakers.sent("m", "w", 4)
    assert breakers.shut("m", 1.1) == {"w"}
    assert breakers.states() == {("m", "w"): "half_open"}
    breakers.ended("m", "w", 4, False, 1.2)
    assert breakers.shut("m", 2.1) == {"w"}
    breakers.sent("m", "w", 5)
    breakers.ended("m", "w", 5, None, 2.3)
    assert not breakers.shut("m", 2.3)
    breakers.sent("m", "w", 6)
    breakers.ended("m", "w", 6, True, 2.4)
    assert not breakers.states()


def test_a_success_between_failures_keeps_a_breaker_closed() -> None:
    breakers = Breakers(2)
    for number in range(10):
        breakers.ended("m", "w", number, number % 2 == 0, 0.0)
    assert not breakers.shut("m", 0.0)


def test_breakers_of_workers_that_left_are_forgotten() -> None:
    breakers = Breakers(1)
    breakers.ended("m", "gone", 0, False, 0.0)
    breakers.ended("m", "there", 0, False, 0.0)
    breakers.keep(frozenset(["there"]))
    assert breakers.shut("m", 0.0) == {"there"}


@given(st.lists(st.floats(0.001, 10), min_size=50, max_size=600))
def test_quantiles_are_of_the_latest(latencies: list[float]) -> None:
    found = AttemptLatencies()
    for number, latency_s in enumerate(latencies):
        assert (found.quantile_s("m", 0.95) is None) == (number < 50)
        found.took("m", latency_s)
    latest = sorted(latencies[-512:])
    assert found.quantile_s("m", 0.95) == latest[int(0.95 * len(latest))]


LARGEST = 2**63 - 1


def test_elements_are_counted_up_to_a_number_of_dimensions() -> None:
    assert elements([]) == 1
    assert elements([2, 3, 4]) == 24
    assert elements([LARGEST, 0]) == 0
    assert elements([1] * MOST_RANK) == 1
    assert elements([1] * (MOST_RANK + 1)) is None
    assert elements([LARGEST] * 50_000) is None
    assert elements([2, -1]) is None


def test_a_shape_of_json_with_more_dimensions_is_refused() -> None:
    def body(shape: list[int]) -> bytes:
        return json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": [1]}]}).encode()

    read_request(body([1] * MOST_RANK), None, "m", "")
    largest = body([LARGEST] * 49_000)
    assert len(largest) < bounds.MAX_JSON_BYTES
    with pytest.raises(RefusedInputError, match="'shape': it has 49000 dimensions; in JSON 32 at most are read"):
        read_request(largest, None, "m", "")


@pytest.mark.parametrize("datatype", ["FP32", TEXT])
def test_an_answer_with_more_dimensions_is_not_written_as_json(datatype: str) -> None:
    answer = service_pb2.ModelInferResponse(model_name="m")
    answer.outputs.add(name="Y", datatype=datatype, shape=[1] * (MOST_RANK + 1))
    answer.raw_output_contents.append(bytes(4))
    with pytest.raises(UnwritableError, match="does not match size of output"):
        list(json_parts(answer, WantedOutputs({})))


TYPES = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}


def answer(values: Any, datatype: str = "FP32", *, shape: list[int] | None = None, name: str = "P") -> bytes:
    """A ModelInferResponse with a label and one tensor, as raw bytes."""
    tensor = np.array(values, TYPES.get(datatype, np.int64))
    message = service_pb2.ModelInferResponse(model_name="m", id="1")
    message.outputs.add(name="LABEL", datatype="INT64", shape=[1])
    message.outputs.add(name=name, datatype=datatype, shape=tensor.shape if shape is None else shape)
    message.raw_output_contents.extend([np.array([7]).tobytes(), tensor.tobytes()])
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("no such output", answer([[0.5]], name="Q")),
        ("integers", answer([[1]], "INT64")),
        ("unknown type", answer([[1]], "FP8")),
        ("not a number", answer([[0.5, float("nan")], [0.5, 0.5]])),
        ("no element", answer([[]])),
        ("no row", answer([], shape=[0, 4])),
        ("fewer bytes than the shape", answer([[0.5, 0.5]], shape=[1, 3])),
        ("more bytes than the shape", answer([[0.5, 0.5]], shape=[1, 1])),
        ("a negative shape", answer([[0.5, 0.5]], shape=[-1, -2])),
        ("a huge shape", answer([[0.5, 0.5]], shape=[2**62, 2**62])),
        ("too many dimensions", answer([[0.5]], shape=[1] * 33)),
        ("half an element", answer([[0.5]])[:-1]),
        ("too large", answer(np.ones((1, MOST_BYTES // 4 + 1)))),
        ("an output without its bytes", answer([[0.5]])[:-10]),
        ("nothing", b""),
        ("no message", b"\xff\xff"),
    ],
)
def test_what_cannot_be_read_is_none(what: str, data: bytes) -> None:
    assert confidence(data, "P") is None


def test_the_largest_that_is_read() -> None:
    assert confidence(answer(np.full((2, MOST_BYTES // 8), 0.5)), "P") == 0.5
