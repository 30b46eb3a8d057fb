"""Questions about the fleet, by either protocol: whom to ask, and one answer of many.

What differs between the protocols is how a worker is asked, and how an answer is written as plain data and back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from balancer import bounds
from balancer.config.config import Config
from balancer.fleet_api import combine
from balancer.fleet_api.counts import FleetCallCounts
from balancer.fleet_api.fan_out import Answers, FanOut
from balancer.fleet_api.members import Members

Plain = Any
ANSWER_TIMEOUT_S = 2.0
"""Of one worker: probes ask each few seconds. An answer does without those that take longer."""
SERVER_NAME = "triton"
"""That the server's metadata says; what Triton calls itself by default."""
_MOST_KEPT = 4096
"""Statistics that workers gave last."""


@dataclass(frozen=True, slots=True)
class Question:
    call: str
    """As gRPC names it."""
    protocol: str
    ask: Callable[[str], Awaitable[Plain]]
    """Asks a worker, in plain data; raises FailedError."""
    model: str = ""
    version: str = ""
    ready: bool = False
    """Of the index: only what is ready."""
    headers: Hashable = ()
    """Of the client, that go to workers."""

    @property
    def key(self) -> Hashable:
        return self.protocol, self.call, self.model, self.version, self.ready, self.headers


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    content: Plain
    missing: tuple[str, ...] = ()
    """Workers that were asked and said nothing."""


class Questions:
    def __init__(
        self, members: Members, fan_out: FanOut, config: Callable[[], Config], counts: FleetCallCounts
    ) -> None:
        self._members = members
        self._fan_out = fan_out
        self._config = config
        self._counts = counts
        self._last: OrderedDict[Hashable, Plain] = OrderedDict()
        """What a worker said of its statistics last, by its name and the question."""

    async def answer(self, question: Question) -> WorkerAnswer:
        """One Triton's answer.

        Raises:
            FailedError: there is none.
            OutOfBoundsError: a name is not within bounds.
        """
        bounds.text("model", question.model)
        bounds.text("version", question.version)
        return await self._fan_out.fresh(question.key, lambda: self._ask_workers(question))

    async def _ask_workers(self, question: Question) -> WorkerAnswer:
        answers = await self._fan_out.each(self._whom(question), question.ask, ANSWER_TIMEOUT_S)
        missing = tuple(worker for worker, failure in answers.failed.items() if failure.away)
        if missing:
            self._counts.unanswered.labels(question.call).inc(len(missing))
        return WorkerAnswer(self._combined(question, answers), missing)

    def _whom(self, question: Question) -> Sequence[str]:
        match question.call:
            case "ModelReady" | "ModelMetadata" | "ModelConfig":
                return self._members.of_model(question.model, question.version)
            case "ModelStatistics":
                return self._members.that_counted(question.model)
            case "RepositoryIndex":
                return self._members.names
            case _:
                return self._members.serving()

    def _combined(self, question: Question, answers: Answers) -> Plain:
        one: Plain
        match question.call:
            case "ServerReady":
                ready = sum(answer["ready"] for answer in answers.given.values())
                one = {"ready": ready >= self._config().fleet.ready_workers}
            case "ModelReady":
                # As the worker says it that is ready, if one is: over HTTP, its words come with the answer.
                one = max(answers.any(), key=lambda answer: answer["ready"])
            case "ModelStatistics":
                one = self._statistics(question, answers)
            case "RepositoryIndex":
                one = combine.index(answers.any(), ready=question.ready)
            case "ModelMetadata":
                one = combine.metadata(self._agreed(question, answers, frozenset({"versions"})))
            case "SystemSharedMemoryStatus" | "CudaSharedMemoryStatus":
                one = {name: region for answer in answers.any() for name, region in answer.items()}
            case "ServerMetadata":
                one = {**self._agreed(question, answers, frozenset({"name"}))[0], "name": SERVER_NAME}
            case _:
                one = self._agreed(question, answers)[0]
        return one

    def _agreed(self, question: Question, answers: Answers, but: frozenset[str] = frozenset()) -> list[Plain]:
        given = answers.any()
        if not combine.agree(given, but):
            self._counts.disagreements.labels(question.call).inc()
        return given

    def _statistics(self, question: Question, answers: Answers) -> Plain:
        """A sum that does not fall while a worker is silent: what it said last goes on counting while it is listed."""
        for worker, answer in answers.given.items():
            self._last[worker, question.key] = answer
            self._last.move_to_end((worker, question.key))
        while len(self._last) > _MOST_KEPT:
            self._last.popitem(last=False)
        for worker, failure in answers.failed.items():
            before = self._last.get((worker, question.key)) if failure.away else None
            if before is not None:
                answers.given[worker] = before
        return combine.statistics(answers.any())

    def forget(self, workers: set[str]) -> None:
        for key in [key for key in self._last if isinstance(key, tuple) and key[0] in workers]:
            del self._last[key]
