"""Asks workers: all at once, each within its time, so many at a time, and nobody twice for the same at one moment.

A worker's answer by gRPC is plain data here, so that both protocols' answers are combined by one rule.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from prometheus_client import CollectorRegistry, Counter
from tritonclient.grpc import service_pb2

from balancer.channels import restricted
from balancer.channels.channels import Channels, UnknownWorkerError
from balancer.channels.restricted import Headers
from balancer.extproc.kserve import SERVICE
from balancer.extproc.responses import HTTP_STATUSES

T = TypeVar("T")

AT_ONCE = 64
"""Calls to workers that are under way at once, whoever asked."""
MOST_ROUNDS = 256
"""Different questions under way at once; one more is refused."""

_CODES = {HTTP_STATUSES[code.value[0]]: code for code in grpc.StatusCode if code.value[0] in HTTP_STATUSES}
_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


@dataclass(frozen=True, slots=True)
class Failure:
    code: grpc.StatusCode
    words: str
    status: int = 0
    body: bytes | None = None
    """Of HTTP, as the worker wrote it; None: `words` in Triton's JSON."""

    @classmethod
    def of_status(cls, status: int, words: str, body: bytes | None = None) -> Failure:
        return cls(_CODES.get(status, grpc.StatusCode.INTERNAL), words, status, body)

    @property
    def away(self) -> bool:
        """Whether nothing was said about the question: the worker is not there, or silent."""
        return self.code in _AWAY and (self.status == 0 or self.status >= 500)

    @property
    def unknown_call(self) -> bool:
        """Whether the worker seems to know no such call, so is no Triton: Ray Serve says UNKNOWN."""
        return self.code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN) or self.status == 404

    @property
    def http_status(self) -> int:
        return self.status or HTTP_STATUSES.get(self.code.value[0], 500)


NOBODY = Failure(grpc.StatusCode.UNAVAILABLE, "no worker is listed")


class FailedError(Exception):
    """A call has no answer but a failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.words)
        self.failure = failure


@dataclass
class Answers:
    given: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)

    def any(self) -> list[Any]:
        """The answers, of which there is one at least.

        Raises:
            FailedError: there is none: what a worker said of the question, or that none could be asked.
        """
        if self.given:
            return list(self.given.values())
        failures = sorted(self.failed.values(), key=lambda failure: failure.away)
        raise FailedError(failures[0] if failures else NOBODY)


class FanOut:
    """Belongs to one event loop."""

    def __init__(self, at_once: int = AT_ONCE, most_rounds: int = MOST_ROUNDS) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._most_rounds = most_rounds
        self._running: dict[Hashable, asyncio.Future[Any]] = {}
        self._following: dict[Hashable, asyncio.Future[Any]] = {}
        """Questions that are asked once more when their round has ended, for those who came after it had begun."""

    async def each(self, workers: Iterable[str], ask: Callable[[str], Awaitable[Any]], timeout_s: float) -> Answers:
        """Ask these; `ask` raises FailedError where the worker does."""

        async def one(worker: str) -> Any:
            try:
                async with asyncio.timeout(timeout_s), self._places:
                    return await ask(worker)
            except FailedError as error:
                return error.failure
            except TimeoutError:
                return Failure(grpc.StatusCode.DEADLINE_EXCEEDED, f"{worker} did not answer within {timeout_s:g} s")

        names = list(workers)
        answers = Answers()
        for name, answer in zip(names, await asyncio.gather(*map(one, names)), strict=True):
            if isinstance(answer, Failure):
                answers.failed[name] = answer
            else:
                answers.given[name] = answer
        return answers

    async def fresh(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` gives, begun after this was called; those who ask the same meanwhile get the same answer.

        So workers are asked at most one thing at a time, however often clients poll, and no answer is older than its
        question.

        Raises:
            FailedError: too many different questions are under way.
        """
        waiting = self._following.get(question)
        if waiting is None:
            running = self._running.get(question)
            if running is None and len(self._running) >= self._most_rounds:
                rule = f"more than {self._most_rounds} different questions about the fleet are under way; try again"
                raise FailedError(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, rule))
            waiting = asyncio.ensure_future(self._round(question, ask, running))
            waiting.add_done_callback(_look_at)
            if running is None:
                self._running[question] = waiting
            else:
                self._following[question] = waiting
        result: T = await asyncio.shield(waiting)
        return result

    async def _round(
        self, question: Hashable, ask: Callable[[], Awaitable[Any]], before: asyncio.Future[Any] | None
    ) -> Any:
        if before is not None:
            await asyncio.wait((before,))
            self._running[question] = self._following.pop(question)
        try:
            return await ask()
        finally:
            if question not in self._following:
                del self._running[question]


def _look_at(ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()


def summed_up(failed: Mapping[str, Failure], workers: int, what: str) -> Failure:
    """One failure for those of several workers: the words of all where they say the same, and each one's where not."""
    first = next(iter(failed.values()))
    if len(failed) == workers and len({(failure.code, failure.words) for failure in failed.values()}) == 1:
        return first
    each = "; ".join(f"{worker}: {failure.words}" for worker, failure in failed.items())
    return Failure(first.code, f"{what} failed on {len(failed)} of {workers} workers: {each}"[:4096])


_METHODS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
REQUESTS: Mapping[str, type[Message]] = {name: GetMessageClass(its.input_type) for name, its in _METHODS.items()}
RESPONSES: Mapping[str, type[Message]] = {name: GetMessageClass(its.output_type) for name, its in _METHODS.items()}


def gone(worker: str) -> FailedError:
    return FailedError(Failure(grpc.StatusCode.UNAVAILABLE, f"{worker} is not listed any more"))


async def ask(channels: Channels, worker: str, method: str, request: Message, headers: Headers = ()) -> Any:
    """One worker's answer.

    Raises:
        FailedError: what it said in place of one.
    """
    try:
        # With the methods' own serializers, a message that is none would end in gRPC's words.
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channels.of(worker).unary_unary(f"{SERVICE}{method}")
        return RESPONSES[method].FromString(await call(request.SerializeToString(), metadata=headers))
    except UnknownWorkerError as error:
        raise gone(worker) from error
    except grpc.aio.AioRpcError as error:
        words = error.details() or ""
        raise FailedError(Failure(error.code(), words, restricted.status_of(words))) from error
    except DecodeError as error:
        raise FailedError(Failure(grpc.StatusCode.INTERNAL, f"{worker} answered what is no answer")) from error


def plain(message: Message) -> dict[str, Any]:
    """Its fields by name, but for what can be absent and is; numbers as such, which protobuf's JSON has as text."""
    return {
        field.name: _value(getattr(message, field.name), field)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(value: Any, field: FieldDescriptor) -> Any:
    of_message = field.message_type is not None
    if of_message and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {key: _value(value[key], inner) for key in value}
    if field.is_repeated:
        return [plain(each) if of_message else each for each in value]
    if of_message:
        return plain(value)
    return base64.b64encode(value).decode() if field.type == FieldDescriptor.TYPE_BYTES else value


def message(of: type[Message], content: dict[str, Any]) -> Message:
    return json_format.ParseDict(content, of())


class FleetCallCounts:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"balancer_fleet_{name}", text, labels, registry=registry)

        self.calls = counter("calls", "Calls about the fleet, by what became of them", "call", "result")
        self.unanswered = counter("unanswered", "Workers that gave a call about the fleet no answer in time", "call")
        self.disagreements = counter(
            "disagreements", "Calls about the fleet that workers answered differently, though they should not", "call"
        )
        self.changes = counter("changes", "Changes of workers by clients, by what became of them", "call", "result")
        self.replays = counter(
            "replays", "Changes made again at a worker that joined, by what became of them", "result"
        )
