"""Whatever models and workers do, a confidence cascade gives the answer of the last model that answered well, asks none
twice, and none that would be late; and whatever an answer holds, reading how sure it is does no harm."""

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.examples import examples
from support.proxied import request
from tritonclient.grpc import service_pb2

from balancer.extproc.inference_bytes import read
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.proxy.attempts import Clocks
from balancer.proxy.cascading import Cascades, CascadeStep, answer_s, confidence, in_time, next_step
from balancer.proxy.messages import INFER, OK, Arrived, ProxyAnswer
from balancer.proxy.settings import ConfidenceCascadeSection, ProxySection, ProxySettings
from policies.base import Request

THRESHOLD = 0.5
ROWS = st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
    lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=1, max_dims=4, max_side=5))
)
NAMES = {"float16": "FP16", "float32": "FP32", "float64": "FP64"}


def answered(model: str, tensor: np.ndarray) -> bytes:
    """A ModelInferResponse whose second output is the tensor."""
    message = service_pb2.ModelInferResponse(model_name=model, id="7")
    message.outputs.add(name="LABEL", datatype="INT64", shape=[1])
    message.outputs.add(name="P", datatype=NAMES[tensor.dtype.name], shape=tensor.shape)
    message.raw_output_contents.extend([bytes(8), tensor.tobytes()])
    data: bytes = message.SerializeToString()
    return data


@given(ROWS)
def test_it_is_the_least_of_the_rows_greatest_elements(tensor: np.ndarray) -> None:
    rows = tensor if tensor.ndim > 1 else tensor[None]
    expected = min(np.max(row) for row in rows)
    found = confidence(answered("m", tensor), "P")
    if np.isnan(tensor).any():
        assert found is None
    else:
        assert found == float(expected)


@settings(max_examples=examples(500))
@given(ROWS, st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=6)), max_size=5), st.integers(0, 400))
def test_no_answer_breaks_the_reading(tensor: np.ndarray, spoilt: list[tuple[int, bytes]], length: int) -> None:
    data = answered("m", tensor)
    for at, some in spoilt:
        data = data[:at] + some + data[at + len(some) :]
    for each in (data, data[:length]):
        found = confidence(each, "P")
        assert found is None or not math.isnan(found)


@dataclass(frozen=True)
class Does:
    """What becomes of a request for one model."""

    expected_s: float | None
    takes_s: float
    sure: float | None
    """None: it fails."""


DOES = st.builds(
    Does,
    expected_s=st.none() | st.floats(0, 2),
    takes_s=st.floats(0, 2),
    sure=st.none() | st.floats(0, 1, width=32),
)
TIMES = st.floats(0.02, 4) | st.just(math.inf)


class Played:
    """One request, with a clock of its own."""

    def __init__(self, does: list[Does], time_s: float) -> None:
        self.does = {f"m{number}": each for number, each in enumerate(does)}
        self.now_s, self.executed, self.executed_at_s = 0.0, list[str](), list[float]()
        data = request("vision", name="7")
        found = read(data)
        call = read_call({":path": INFER, "content-type": "application/grpc"}, found.fields, HeaderNames())
        call = replace(call, request=replace(call.request, deadline_s=time_s))
        self.step = CascadeStep(Arrived(call, data, (), deadline_s=time_s, id_spans=found.id_spans))
        clocks = Clocks(lambda: self.now_s, lambda: 0.0)
        self.cascades = Cascades(lambda each: self.does[each.model].expected_s, clocks, Counter())
        cascade = ConfidenceCascadeSection(models=tuple(self.does), output="P", threshold=THRESHOLD)
        self.cascades.configure(ProxySettings(ProxySection(confidence_cascades={"vision": cascade})))

    async def execute(self, arrived: Arrived) -> ProxyAnswer:
        request: Request = arrived.call.request
        sent = service_pb2.ModelInferRequest.FromString(arrived.data)
        assert (sent.model_name, sent.id) == (request.model, "7")
        self.executed.append(request.model)
        self.executed_at_s.append(self.now_s)
        does = self.does[request.model]
        self.now_s += does.takes_s
        if does.sure is None:
            return ProxyAnswer(13, "failed")
        return ProxyAnswer(OK, data=answered(request.model, np.array([[does.sure]], np.float32)), worker="w")

    async def run(self) -> ProxyAnswer:
        return await self.cascades.infer(self.step, self.execute)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(DOES, min_size=2, max_size=5), TIMES)
def test_the_last_good_answer_is_given_and_no_model_executes_in_vain(does: list[Does], time_s: float) -> None:
    played = Played(does, time_s)
    answer = asyncio.run(played.run())
    executed = played.executed
    assert executed == sorted(set(executed))
    able = [name for name, each in played.does.items() if each.expected_s is not None]
    assert executed[0] == (able[0] if able else "m0")
    assert set(executed[1:]) <= set(able)
    for before, model, at_s in zip(executed, executed[1:], played.executed_at_s[1:], strict=False):
        sure = played.does[before].sure
        assert sure is not None
        assert sure < THRESHOLD
        expected_s = played.does[model].expected_s
        assert expected_s is not None
        assert at_s + expected_s <= time_s - answer_s(time_s) + 1e-9
    good = [model for model in executed if played.does[model].sure is not None]
    if not good:
        assert answer.code != OK
        return
    assert answer.code == OK
    assert service_pb2.ModelInferResponse.FromString(answer.data).model_name == good[-1]
    assert played.step.arrived.call.request.model == good[-1]
    assert played.step.arrived.cascaded
    if good[-1] == executed[-1] and (played.does[good[-1]].sure or 0) < THRESHOLD:
        # The last model asked was not sure, so each one after it had no worker, or not enough time left.
        left_s = time_s - answer_s(time_s) - played.now_s
        after = able[able.index(good[-1]) + 1 :] if good[-1] in able else able
        assert all(played.does[model].expected_s > left_s - 1e-9 for model in after)  # type: ignore[operator]  # the able have one


@given(st.lists(st.none() | st.floats(0, 2), min_size=1, max_size=5), st.floats(0, 3) | st.just(math.inf))
def test_steps_are_the_first_that_may(expected: list[float | None], left_s: float) -> None:
    models = [str(number) for number in range(len(expected))]
    able = [(model, each) for model, each in zip(models, expected, strict=True) if each is not None]
    quick = [model for model, each in able if each <= left_s]

    def of(model: str) -> float | None:
        return expected[int(model)]

    assert in_time(models, of, left_s) == (quick[0] if quick else able[-1][0] if able else None)
    model, late = next_step(models, of, left_s)
    assert model == (quick[0] if quick else None)
    assert late == any(
        each > left_s for _, each in (able if model is None else able[: [m for m, _ in able].index(model)])
    )
