"""Names that several models serve: by what is left of the time, or by how sure the faster ones are."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from balancer.bounds import OutOfBoundsError
from balancer.extproc import wire
from balancer.extproc.inference_bytes import with_model, writes_memory
from balancer.extproc.wire import WireField
from balancer.proxy.attempts import Clocks
from balancer.proxy.messages import OK, Arrived, ProxyAnswer, elements
from balancer.proxy.settings import ConfidenceCascadeSection, ProxySettings
from policies.base import Request

MOST_BYTES = 2**18
_OUTPUT, _RAW = 5, 6
"""Of ModelInferResponse."""
_NAME = 1
"""Of an output."""
_MOST_OF_OUTPUT = 64
_TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}


def confidence(data: bytes, output: str) -> float | None:
    """The greatest element of each row of this output of a ModelInferResponse, and of those the least.

    Rows are the first dimension; a tensor of fewer than two dimensions is one row. None where the answer does not have
    such an output, or it cannot be read: not of floating point, of another size than its shape, not a number.
    """
    try:
        rows = _rows(data, output)
    except (OutOfBoundsError, DecodeError):
        return None
    if rows is None:
        return None
    least = float(rows.max(axis=1).min())
    return None if math.isnan(least) else least


def _rows(data: bytes, output: str) -> npt.NDArray[np.float64] | None:
    outputs, raw = [], []
    for part in wire.parts(data):
        if part.number == _OUTPUT and part.is_bytes:
            outputs.append(part)
        elif part.number == _RAW and part.is_bytes:
            raw.append(part)
    name = output.encode()
    place = next((place for place, part in enumerate(outputs) if _name(data, part) == name), None)
    if place is None or outputs[place].end - outputs[place].start > MOST_BYTES:
        return None
    tensor = service_pb2.ModelInferResponse.InferOutputTensor.FromString(
        data[outputs[place].start : outputs[place].end]
    )
    # A Triton writes all tensors as raw bytes.
    values = _raw(data, tensor.datatype, raw[place]) if len(raw) == len(outputs) else None
    if values is None or elements(tensor.shape) != len(values):
        return None
    if not len(values):
        return None
    return values.astype(np.float64).reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1)


def _name(data: bytes, output: WireField) -> bytes:
    """The last one counts, as protobuf has it."""
    name = b""
    for part in wire.parts(data, output.start, output.end, _MOST_OF_OUTPUT):
        if part.number == _NAME and part.is_bytes:
            name = data[part.start : part.end]
    return name


def _raw(data: bytes, datatype: str, part: WireField) -> npt.NDArray[np.floating] | None:
    kind = _TYPES.get(datatype)
    length = part.end - part.start
    if kind is None or length > MOST_BYTES or length % np.dtype(kind).itemsize:
        return None
    return np.frombuffer(data, kind, length // np.dtype(kind).itemsize, part.start)


Execute = Callable[[Arrived], Awaitable[ProxyAnswer]]
Expected = Callable[[str], float | None]
"""Seconds that a model's best worker is expected to take; None: it has no worker."""

_ANSWER_SHARE, _LEAST_ANSWER_S, _MOST_ANSWER_S = 0.1, 0.01, 0.1


@dataclass(slots=True)
class CascadeStep:
    arrived: Arrived


class Cascades:
    def __init__(
        self, expected_s: Callable[[Request], float | None], clocks: Clocks, counts: Counter[tuple[str, str]]
    ) -> None:
        """`expected_s`: how long a request's best worker is expected to take; None: it has none."""
        self._expected, self._clocks, self._counts = expected_s, clocks, counts
        self._settings = ProxySettings()

    def configure(self, settings: ProxySettings) -> None:
        self._settings = settings

    def has(self, name: str) -> bool:
        return name in self._settings.proxy.cascades or name in self._settings.proxy.confidence_cascades

    async def infer(self, step: CascadeStep, execute: Execute) -> ProxyAnswer:
        """The answer to a request for a name; `step` says afterwards whose."""
        arrived = step.arrived
        name = arrived.call.request.model
        sure = self._settings.proxy.confidence_cascades.get(name)
        if sure is not None:
            answer = await self._until_sure(step, sure, execute)
        else:
            chosen = self._first(arrived, self._settings.proxy.cascades[name])
            step.arrived = self._for_model(arrived, chosen)
            answer = await execute(step.arrived)
        self._counts["cascades", step.arrived.call.request.model] += 1
        return answer

    def _first(self, arrived: Arrived, models: tuple[str, ...]) -> str:
        """Without any worker, the first, so that its absence is reported; a sequence stays with the first."""
        among = models[:1] if arrived.call.request.sequence else models
        left_s = float(arrived.call.request.deadline_s)
        return in_time(among, lambda model: self._expected_s(arrived, model), left_s) or models[0]

    async def _until_sure(self, step: CascadeStep, cascade: ConfidenceCascadeSection, execute: Execute) -> ProxyAnswer:
        original, models = step.arrived, cascade.models
        time_s = float(original.call.request.deadline_s)
        until_s = self._clocks.now() + time_s - answer_s(time_s)
        # A sequence stays with one model, and no model writes over what another has written.
        alone = bool(original.call.request.sequence) or writes_memory(original.data)
        # The first that has a worker: `inf` leaves none out for time.
        first, _ = next_step(models[:1] if alone else models, lambda model: self._expected_s(original, model), math.inf)
        step.arrived = self._for_model(original, first or models[0])
        answer = await execute(step.arrived)
        left = models[models.index(step.arrived.call.request.model) + 1 :]
        while not alone and answer.code == OK and left and not self._is_sure(answer, cascade):
            left_s = until_s - self._clocks.now()
            model, late = next_step(left, lambda model: self._expected_s(original, model), left_s)
            if model is None:
                self._counts["confidence", "late" if late else "no_worker"] += 1
                break
            left = left[left.index(model) + 1 :]
            following = self._for_model(original, model, until_s)
            better = await self._in_time(following, until_s, execute)
            if better is None or better.code != OK:
                self._counts["confidence", "late" if better is None else "failed"] += 1
                break
            step.arrived, answer = following, better
        return answer

    def _is_sure(self, answer: ProxyAnswer, cascade: ConfidenceCascadeSection) -> bool:
        found = confidence(answer.data, cascade.output)
        result = "unread" if found is None else "sure" if found >= cascade.threshold else "unsure"
        self._counts["confidence", result] += 1
        return result == "sure"

    async def _in_time(self, arrived: Arrived, until_s: float, execute: Execute) -> ProxyAnswer | None:
        left_s = until_s - self._clocks.now()
        try:
            async with asyncio.timeout(left_s if left_s < math.inf else None):
                return await execute(arrived)
        except TimeoutError:
            return None

    def _for_model(self, arrived: Arrived, model: str, until_s: float = math.inf) -> Arrived:
        """The request for one of the models; `until_s`: when it is too late for a later one."""
        request = replace(arrived.call.request, model=model)
        deadline_s = arrived.deadline_s
        if until_s < math.inf:
            request = replace(request, deadline_s=max(until_s - self._clocks.now(), 1e-9))
            deadline_s = min(deadline_s, until_s)
        settings = self._settings.of(model)
        return replace(
            arrived,
            call=replace(arrived.call, request=request),
            data=with_model(arrived.data, model),
            deadline_s=deadline_s,
            repeatable=arrived.repeatable or (settings.repeatable and not arrived.in_memory),
            hedged=settings.hedge,
            cascaded=True,
        )

    def _expected_s(self, arrived: Arrived, model: str) -> float | None:
        return self._expected(replace(arrived.call.request, model=model))


def answer_s(time_s: float) -> float:
    """What of a request's time is left for the way of an answer to its client: a tenth, within bounds."""
    return min(_MOST_ANSWER_S, max(_LEAST_ANSWER_S, _ANSWER_SHARE * time_s))


def in_time(models: Sequence[str], expected: Expected, left_s: float) -> str | None:
    """The first model that is expected to be done in time; else the last that has a worker; None: none has."""
    chosen = None
    for model in models:
        expected_s = expected(model)
        if expected_s is not None:
            chosen = model
            if expected_s <= left_s:
                break
    return chosen


def next_step(models: Sequence[str], expected: Expected, left_s: float) -> tuple[str | None, bool]:
    """Of models that were not asked yet, the first that has a worker and is expected to be done in time; and whether
    one was passed over because it is not."""
    late = False
    for model in models:
        expected_s = expected(model)
        if expected_s is not None:
            if expected_s <= left_s:
                return model, late
            late = True
    return None, late
