"""Questions about the fleet, by either protocol: whom to ask, and one answer of many.

What differs between the protocols is how a worker is asked, and how an answer is written as plain data and back.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from balancer import bounds
from balancer.config.config import Config
from balancer.discovery.workers import WorkerSpec
from balancer.fleet_api.fan_out import Answers, FanOut, FleetCallCounts
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.worker import objections


class Members:
    def __init__(self, router: AnyRouter) -> None:
        self._router = router
        self.listed: tuple[WorkerSpec, ...] = ()
        self.unasked: frozenset[str] = frozenset()
        """Names of those that take HTTP alone, as no Triton does: their reports say all that is known."""

    @property
    def names(self) -> list[str]:
        return [worker.name for worker in self.listed]

    def serving(self) -> list[str]:
        """Those that are not about to end; where all are, all."""
        fleet = self._router.fleet
        ending = {worker.name for worker in fleet.workers if worker.draining or worker.stopping}
        return [name for name in self.names if name not in ending] or self.names

    def of_model(self, model: str, version: str) -> list[str]:
        """Those that may serve a model. Where none may, one, whose Triton says why."""
        return self._able(model, version) or self._any()

    def _able(self, model: str, version: str) -> list[str]:
        fleet = self._router.fleet
        servable = fleet.servable(model, version)
        able = {worker.name for worker, may in zip(fleet.workers, servable, strict=True) if may}
        return [name for name in self.names if name in able]

    def by_reports(self, model: str, version: str, unanswering: Set[str]) -> int:
        """How many of those that were not asked, or know no such call, serve a model."""
        names, fleet = self.unasked | unanswering, self._router.fleet
        servable = fleet.servable(model, version)
        return sum(1 for worker, may in zip(fleet.workers, servable, strict=True) if may and worker.name in names)

    def _any(self) -> list[str]:
        return (self._able("", "") or self.serving())[:1]

    def serve(self, names: Sequence[str], model: str) -> bool:
        """Whether the router knows that these have a model, as far as they are not about to end."""
        able, serving = {*self._able(model, "")}, {*self.serving()}
        return all(name in able for name in names if name in serving)

    def that_counted(self, model: str) -> list[str]:
        """Those that may have statistics of a model: all, where the fleet knows it. Else one, whose Triton says so."""
        return self.names if not model or self._router.fleet.knows(model) else self._any()

    def to_load(self, model: str) -> list[str]:
        """Those that the model table lets have a model, whether or not they have it now."""
        fleet = self._router.fleet
        # Of all that speaks against a worker, what the table says alone.
        settings = dataclasses.replace(fleet.settings, reports_required=False)
        allowed = set()
        for worker in fleet.workers:
            new = dataclasses.replace(worker, number=-1, draining=False, stopping=False)
            if not any(objections(new, settings, model, "")):
                allowed.add(worker.name)
        return [name for name in self.names if name in allowed]

    def incarnations(self) -> dict[str, tuple[str, int]]:
        """Where each listed worker is, and which of its lives it has: both change with what it has forgotten. Those are
        left out whose agent is yet to report.
        """
        fleet = self._router.fleet
        known = {worker.name: worker for worker in fleet.workers}
        awaited = fleet.settings.reports_required
        return {
            each.name: (each.grpc_endpoint, known[each.name].incarnation)
            for each in self.listed
            if each.name in known and not (awaited and known[each.name].number < 0)
        }


_MOST = 2**64 - 1
_NAMED_BY: Mapping[str, tuple[str, ...]] = {
    "batch_stats": ("batch_size",),
    "memory_usage": ("type", "id"),
}
_SAME = frozenset({"name", "version", *(field for fields in _NAMED_BY.values() for field in fields)})
_LATEST = frozenset({"last_inference"})
# As Triton spells them, from the best. Whatever else there is counts as worse.
_STATES = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


def statistics(answers: Iterable[Mapping[str, Plain]]) -> dict[str, Plain]:
    """The sum over workers, by model and version; statistics of batches by their size."""
    models: dict[tuple[str, str], Plain] = {}
    for answer in answers:
        for model in answer.get("model_stats", ()):
            key = str(model.get("name", "")), str(model.get("version", ""))
            models[key] = _added(models[key], model) if key in models else model
    return {"model_stats": list(models.values())}


def _added(one: Plain, other: Plain, name: str = "") -> Plain:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {
            field: _added(one[field], other[field], field)
            if field in one and field in other
            else one.get(field, other.get(field))
            for field in {**one, **other}
        }
    if isinstance(one, list) and isinstance(other, list):
        return _added_lists(one, other, _NAMED_BY.get(name, ()))
    if name in _LATEST:
        return max(one, other)
    if name in _SAME or isinstance(one, bool) or not (isinstance(one, int) and isinstance(other, int)):
        return one
    return min(one + other, _MOST)


def _added_lists(one: Sequence[Plain], other: Sequence[Plain], named_by: tuple[str, ...]) -> list[Plain]:
    entries: dict[tuple[Plain, ...], Plain] = {}
    for entry in (*one, *other):
        key = tuple(entry.get(field, 0) for field in named_by)
        entries[key] = _added(entries[key], entry) if key in entries else entry
    return [entries[key] for key in sorted(entries, key=lambda key: tuple(map(_sortable, key)))]


def _sortable(value: Plain) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, str(value))


def index(answers: Iterable[Iterable[Mapping[str, Plain]]], *, ready: bool = False) -> list[Mapping[str, Plain]]:
    """The union of what workers list, each version in the worst state that it has on one of them.

    A model without a version was never loaded by that worker: it is listed where no worker has a version of it.
    `ready`: only what is ready everywhere.
    """
    entries: dict[tuple[str, str], Mapping[str, Plain]] = {}
    for answer in answers:
        for entry in answer:
            key = str(entry.get("name", "")), str(entry.get("version", ""))
            if key not in entries or _badness(entry) > _badness(entries[key]):
                entries[key] = entry
    loaded = {name for name, version in entries if version}
    return [
        entry
        for (name, version), entry in entries.items()
        if (version or name not in loaded) and (not ready or entry.get("state") == _STATES[0])
    ]


def _badness(entry: Mapping[str, Plain]) -> int:
    state = entry.get("state", "")
    return _STATES.index(state) if state in _STATES else len(_STATES)


def metadata(answers: Sequence[Mapping[str, Plain]]) -> Mapping[str, Plain]:
    versions = {str(version) for answer in answers for version in answer.get("versions", ())}
    return {**answers[0], "versions": sorted(versions, key=lambda version: (len(version), version))}


def agree(answers: Sequence[Plain], but: frozenset[str] = frozenset()) -> bool:
    """Whether all say the same, but for fields that differ by right."""

    def compared(answer: Plain) -> Plain:
        return (
            {key: value for key, value in answer.items() if key not in but} if isinstance(answer, Mapping) else answer
        )

    return all(compared(answer) == compared(answers[0]) for answer in answers[1:])


Plain = Any
ANSWER_TIMEOUT_S = 2.0
"""Of one worker: probes ask each few seconds. An answer does without those that take longer."""
SERVER_NAME = "triton"
"""That the server's metadata says; what Triton calls itself by default."""
_MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Question:
    call: str
    protocol: str
    ask: Callable[[str], Awaitable[Plain]]
    """Asks a worker, in plain data; raises FailedError."""
    model: str = ""
    version: str = ""
    ready: bool = False
    headers: Hashable = ()

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
                ready = self._by_reports(question, answers) + sum(answer["ready"] for answer in answers.given.values())
                one = {"ready": ready >= self._config().fleet.ready_workers}
            case "ModelReady" if self._by_reports(question, answers):
                one = {"ready": True}
            case "ModelReady":
                # As the worker says it that is ready, if one is: over HTTP, its words come with the answer.
                one = max(answers.any(), key=lambda answer: answer["ready"])
            case "ModelStatistics":
                one = self._statistics(question, answers)
            case "RepositoryIndex":
                one = index(answers.any(), ready=question.ready)
            case "ModelMetadata":
                one = metadata(self._agreed(question, answers, frozenset({"versions"})))
            case "SystemSharedMemoryStatus" | "CudaSharedMemoryStatus":
                one = {name: region for answer in answers.any() for name, region in answer.items()}
            case "ServerMetadata":
                one = {**self._agreed(question, answers, frozenset({"name"}))[0], "name": SERVER_NAME}
            case _:
                one = self._agreed(question, answers)[0]
        return one

    def _by_reports(self, question: Question, answers: Answers) -> int:
        """How many say nothing themselves, and are ready by their reports."""
        unanswering = {worker for worker, failure in answers.failed.items() if failure.unknown_call}
        return self._members.by_reports(question.model, question.version, unanswering)

    def _agreed(self, question: Question, answers: Answers, but: frozenset[str] = frozenset()) -> list[Plain]:
        given = answers.any()
        if not agree(given, but):
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
        return statistics(answers.any())

    def forget(self, workers: set[str]) -> None:
        for key in [key for key in self._last if isinstance(key, tuple) and key[0] in workers]:
            del self._last[key]
