"""Requests of one model that wait a moment for each other and go to a worker as one.

Only what is certain to be right is joined: tensors as raw bytes whose lengths fit their shapes, and nothing that names
memory. All else goes alone, so that Triton itself says what is wrong with it.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.proxy.attempts import Clocks
from balancer.proxy.breakers import AttemptLatencies
from balancer.proxy.messages import LENGTH_BYTES, OK, SIZES, TEXT, Arrived, Metadata, ProxyAnswer, elements
from balancer.proxy.settings import MOST_WAIT_S, BatchSection, ProxySettings
from balancer.proxy.sharing import Callers, Unary

_MOST_BYTES = 2**20
"""Of a request that is joined: a larger one fills a device by itself."""
_MOST_TEXTS = 4096
"""Elements of a text tensor of such a request, each of which is walked over."""

Kind = tuple[object, ...]


class UnlikeError(Exception):
    """An answer that cannot be taken apart by rows."""


@dataclass(frozen=True, slots=True)
class Joinable:
    message: service_pb2.ModelInferRequest
    rows: int
    kind: Kind
    """Equal where requests may be joined."""


def joinable(data: bytes) -> Joinable | None:
    if len(data) > _MOST_BYTES:
        return None
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return None
    inputs, raw = message.inputs, message.raw_input_contents
    rows = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    if len(inputs) != len(raw) or message.parameters or not 1 <= rows <= bounds.MAX_ROWS:
        return None
    names = {each.name for each in inputs}
    if len(names) < len(inputs) or any(each.parameters for each in message.outputs):
        return None
    if not all(_is_plain(each, content, rows) for each, content in zip(inputs, raw, strict=True)):
        return None
    shapes = tuple((each.name, each.datatype, tuple(each.shape[1:])) for each in inputs)
    outputs = tuple(each.name for each in message.outputs)
    return Joinable(message, rows, (message.model_name, message.model_version, shapes, outputs))


def _is_plain(tensor: service_pb2.ModelInferRequest.InferInputTensor, content: bytes, rows: int) -> bool:
    if tensor.parameters or tensor.HasField("contents"):
        return False
    if tensor.datatype == TEXT and (elements(tensor.shape) or 0) > _MOST_TEXTS:
        return False
    return _fits(tensor.datatype, tensor.shape, content, rows)


def join(requests: Sequence[Joinable]) -> bytes:
    first = requests[0].message
    whole = service_pb2.ModelInferRequest(model_name=first.model_name, model_version=first.model_version)
    whole.outputs.extend(first.outputs)
    rows = sum(request.rows for request in requests)
    for number, each in enumerate(first.inputs):
        whole.inputs.add(name=each.name, datatype=each.datatype, shape=[rows, *each.shape[1:]])
        whole.raw_input_contents.append(b"".join(request.message.raw_input_contents[number] for request in requests))
    data: bytes = whole.SerializeToString()
    return data


def split(data: bytes, requests: Sequence[Joinable]) -> list[bytes]:
    """The answer to each of the requests, in their order, with its id; UnlikeError where rows do not tell them
    apart."""
    try:
        whole = service_pb2.ModelInferResponse.FromString(data)
    except DecodeError as error:
        raise UnlikeError from error
    if len(whole.outputs) != len(whole.raw_output_contents):
        raise UnlikeError
    counts = [request.rows for request in requests]
    answers = [
        service_pb2.ModelInferResponse(
            model_name=whole.model_name,
            model_version=whole.model_version,
            id=request.message.id,
            parameters=whole.parameters,
        )
        for request in requests
    ]
    for each, content in zip(whole.outputs, whole.raw_output_contents, strict=True):
        if not each.shape or each.shape[0] != sum(counts) or each.HasField("contents"):
            raise UnlikeError
        for answer, rows, part in zip(answers, counts, _parts(each, content, counts), strict=True):
            output = answer.outputs.add(name=each.name, datatype=each.datatype, shape=[rows, *each.shape[1:]])
            for key, value in each.parameters.items():
                output.parameters[key].CopyFrom(value)
            answer.raw_output_contents.append(part)
    return [answer.SerializeToString() for answer in answers]


def _fits(datatype: str, shape: Sequence[int], content: bytes, rows: int) -> bool:
    count = elements(shape)
    if count is None or not shape or shape[0] != rows:
        return False
    if datatype == TEXT:
        ends = _ends_of_texts(content, count)
        return ends is not None and ends[-1] == len(content)
    return len(content) == count * SIZES.get(datatype, -1)


def _ends_of_texts(content: bytes, count: int) -> list[int] | None:
    """Where each element ends, after a 0; None where there are not so many."""
    ends = [0]
    if count * LENGTH_BYTES > len(content):
        return None
    for _ in range(count):
        start = ends[-1] + LENGTH_BYTES
        end = start + int.from_bytes(content[start - LENGTH_BYTES : start], "little")
        if end > len(content):
            return None
        ends.append(end)
    return ends


def _parts(output: service_pb2.ModelInferResponse.InferOutputTensor, content: bytes, counts: list[int]) -> list[bytes]:
    bounds_of_rows = [0, *accumulate(counts)]
    per_row = elements(output.shape[1:])
    if per_row is None or not _fits(output.datatype, output.shape, content, bounds_of_rows[-1]):
        raise UnlikeError
    if output.datatype == TEXT:
        ends = _ends_of_texts(content, per_row * bounds_of_rows[-1])
        assert ends is not None  # as it fits
        cuts = [ends[rows * per_row] for rows in bounds_of_rows]
    else:
        cuts = [rows * per_row * SIZES[output.datatype] for rows in bounds_of_rows]
    return [content[start:end] for start, end in pairwise(cuts)]


_USUAL_SHARE = 0.95


@dataclass(slots=True, eq=False)
class _Member:
    arrived: Arrived
    joinable: Joinable
    answer: asyncio.Future[ProxyAnswer]


@dataclass(slots=True, eq=False)
class _Group:
    begun_s: float
    timer: asyncio.TimerHandle | None = None
    members: list[_Member] = field(default_factory=list)
    rows: int = 0
    seen: int = 1


class Batching:
    """Stands before what executes; `workers(model, version)` says how many may serve a request."""

    def __init__(
        self,
        inner: Unary,
        workers: Callable[[str, str], int],
        clocks: Clocks,
        latencies: AttemptLatencies,
        counts: Counter[tuple[str, str]],
        callers: Callers,
    ) -> None:
        self._inner, self._workers, self._clocks = inner, workers, clocks
        self._latencies, self._counts, self._callers = latencies, counts, callers
        self._settings = ProxySettings()
        self._open: dict[Kind, _Group] = {}
        self._out: Counter[Kind] = Counter()
        self._running: set[asyncio.Task[None]] = set()

    def configure(self, settings: ProxySettings) -> None:
        self._settings = settings

    async def infer(self, arrived: Arrived) -> ProxyAnswer:
        request = arrived.call.request
        batch = self._settings.of(request.model).batch
        # What is not to be executed twice goes alone: a batch that fails is sent again one by one.
        if not batch.max_rows or not arrived.repeatable or request.key is not None or request.rows >= batch.max_rows:
            return await self._inner.infer(arrived)
        found = joinable(arrived.data)
        if found is None or found.message.model_name != request.model or found.rows >= batch.max_rows:
            return await self._inner.infer(arrived)
        member = _Member(arrived, found, asyncio.get_running_loop().create_future())
        self._join(member, batch)
        return await member.answer

    def _join(self, member: _Member, batch: BatchSection) -> None:
        request = member.arrived.call.request
        kind = (request.tenant, request.priority, self._callers.key(member.arrived), member.joinable.kind)
        group = self._open.get(kind)
        if group is not None and group.rows + member.joinable.rows > batch.max_rows:
            self._go(kind, group)
            group = None
        if group is None:
            group = self._open[kind] = _Group(self._clocks.now())
            self._look_later(kind, group, batch)
        group.members.append(member)
        group.rows += member.joinable.rows
        if group.rows >= batch.max_rows or self._cannot_wait(member.arrived, batch):
            self._go(kind, group)

    def _look_later(self, kind: Kind, group: _Group, batch: BatchSection) -> None:
        group.timer = asyncio.get_running_loop().call_later(batch.wait_s, self._look, kind, group, batch)

    def _look(self, kind: Kind, group: _Group, batch: BatchSection) -> None:
        """Wait on while others come, as those do together whose answers came together, and while every worker may
        have a group of this kind already: one more could only queue there. Within bounds."""
        request = group.members[0].arrived.call.request
        more = len(group.members) > group.seen or self._out[kind] >= self._workers(request.model, request.version)
        if more and self._clocks.now() - group.begun_s + batch.wait_s <= MOST_WAIT_S:
            group.seen = len(group.members)
            self._look_later(kind, group, batch)
        else:
            self._go(kind, group)

    def _cannot_wait(self, arrived: Arrived, batch: BatchSection) -> bool:
        usual_s = self._latencies.quantile_s(arrived.call.request.model, _USUAL_SHARE) or 0.0
        return arrived.deadline_s - self._clocks.now() < usual_s + 2 * MOST_WAIT_S

    def _go(self, kind: Kind, group: _Group) -> None:
        if self._open.get(kind) is group:
            del self._open[kind]
        if group.timer is not None:
            group.timer.cancel()
        # Those whose clients left are done.
        members = [member for member in group.members if not member.answer.done()]
        if not members:
            return
        task = asyncio.create_task(self._send_counted(kind, members))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        for member in members:
            member.answer.add_done_callback(lambda _: _end_unwanted(members, task))

    async def _send_counted(self, kind: Kind, members: list[_Member]) -> None:
        self._out[kind] += 1
        try:
            await self._send(members)
        finally:
            self._out[kind] -= 1
            if not self._out[kind]:
                del self._out[kind]

    async def _send(self, members: list[_Member]) -> None:
        """Execute a group, and give each of it its own answer, whatever became of the others."""
        try:
            self._counts["batches", "sent"] += 1
            self._counts["batches", "requests"] += len(members)
            if len(members) == 1:
                _settle(members[0], await self._inner.infer(members[0].arrived))
                return
            answer = await self._inner.infer(_whole(members, self._callers.headers(members[0].arrived)))
            if answer.code == OK:
                parts = split(answer.data, [member.joinable for member in members])
                for member, part in zip(members, parts, strict=True):
                    _settle(member, replace(answer, data=part))
                return
        except UnlikeError:
            self._counts["batches", "not_split"] += 1
        except Exception as error:
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(error)
            return
        await self._one_by_one(members)

    async def _one_by_one(self, members: list[_Member]) -> None:
        """One request of them may be what failed the others."""
        self._counts["batches", "apart"] += 1
        left = [member for member in members if not member.answer.done()]
        answers = await asyncio.gather(*(self._inner.infer(member.arrived) for member in left), return_exceptions=True)
        for member, answer in zip(left, answers, strict=True):
            if isinstance(answer, ProxyAnswer):
                _settle(member, answer)
            elif not member.answer.done():
                member.answer.set_exception(answer)


def _whole(members: list[_Member], headers: Metadata) -> Arrived:
    """The request for all; it has the headers that all of them have, and lasts as long as the most patient waits."""
    first = members[0].arrived
    request = replace(
        first.call.request,
        rows=sum(member.joinable.rows for member in members),
        deadline_s=min(float(member.arrived.call.request.deadline_s) for member in members),
    )
    return replace(
        first,
        call=replace(first.call, request=request, request_id="", triton_request_id=""),
        data=join([member.joinable for member in members]),
        metadata=headers,
        deadline_s=max((member.arrived.deadline_s for member in members), default=math.inf),
        id_spans=(),
    )


def _settle(member: _Member, answer: ProxyAnswer) -> None:
    if not member.answer.done():
        member.answer.set_result(answer)


def _end_unwanted(members: list[_Member], task: asyncio.Task[None]) -> None:
    if all(member.answer.done() for member in members):
        task.cancel()
