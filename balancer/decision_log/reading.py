"""Reads decision logs back, bit for bit. Imports no front end, so that the simulator may use it."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.decision_log.files import SUFFIX, number_of
from balancer.decision_log.lines import COLUMNS, FORMAT, VERSION, policy_hash
from balancer.errors import OperatorError
from balancer.policy_options import policy_class, read_policy_file
from policies.base import BoolArray, FloatArray, IntArray, Policy, Request, UintArray

_VERSIONS = (1, VERSION)


class DecisionLogError(OperatorError):
    """A decision log that cannot be read or replayed; names file and line, and the remedy."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process of a balancer, from one start of its recording to the end."""

    process: str
    seed: int
    """Of its router."""
    share: float
    """Of the decisions that were to be recorded."""
    started_s: float
    """In the router's clock, which is that of all `at_s`."""
    started_unix_s: float
    """The same moment, in seconds since 1970."""
    arithmetic: str
    """See `lines.arithmetic`."""


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """Who there was, in the order of the columns; `(n,)`."""

    names: tuple[str, ...]
    devices: tuple[str, ...]
    """Device kinds; empty where unknown."""
    weight: FloatArray
    name_hash: UintArray


@dataclass(frozen=True, slots=True)
class ModelService:
    """What a worker had executed of one model since it started."""

    model: str
    max_batch_rows: int
    instances: int
    batches: tuple[tuple[int, int, float], ...]
    """(rows, executions, seconds of compute in all) for each batch size, as in `events.ModelReport`."""


@dataclass(frozen=True, slots=True)
class RecordedService:
    """What a worker's agent had reported of its executions; some seconds apart."""

    run: int
    """Index into `DecisionLog.runs`."""
    worker: str
    at_s: float
    incarnation: int
    """Counters start anew with each."""
    balancers: int
    """That the agent reports to."""
    models: tuple[ModelService, ...]


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    """A policy that was asked."""

    name: str
    options: str
    """JSON, but for infinite numbers."""
    in_force: bool
    sha256: str
    """See `lines.policy_hash`."""
    role: str = "in_force"
    """What it was there for: in_force; hash (the router's own, which places keys and sequences whatever the policy in
    force); baseline (the guard's); rollout (it was being rolled out)."""

    def build(self) -> Policy:
        """The policy as this installation has it; `is_changed` tells whether it is the same.

        Raises:
            DecisionLogError: it has none of that name, or the options do not fit it.
        """
        try:
            return policy_class(self.name)(**json.loads(self.options)).with_files(read_policy_file)
        except (TypeError, ValueError) as error:
            raise DecisionLogError(
                f"policy {self.name} with options {self.options} was recorded and cannot be built here: {error}; "
                "install the distribution, and its version, that was in use"
            ) from error

    def is_changed(self) -> bool:
        """Whether the source of its class differs from the one that decided."""
        return policy_hash(self.build()) != self.sha256


@dataclass(frozen=True, slots=True, eq=False)
class RecordedDecision:
    """One decision with all that it rested on."""

    run: int
    """Index into `DecisionLog.runs`."""
    request: Request
    """With its number."""
    at_s: float
    subset: tuple[str, ...] | None
    """Workers that alone were allowed; None: no such wish. `eligible` says the same."""
    workers: Workers
    columns: FloatArray
    """In the order of `lines.COLUMNS`; `(columns, n)`."""
    eligible: BoolArray
    """Limits and the subset included; `(n,)`."""
    policy: RecordedPolicy
    valid: bool
    """False: the policy's answer was none, and the least pending worker stood in."""
    probabilities: FloatArray
    """`(n,)`; all 0: shed."""
    pick: int
    """Index of the worker; -1: shed."""
    propensity: float
    """The probability of the pick; 0 where shed."""
    fallbacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request for which no policy was asked."""

    run: int
    request: Request
    at_s: float
    reason: str
    """unknown_model, no_worker or shed (by limits)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the request of a decision ended."""

    at_s: float
    worker: str | None
    """That served; empty: none did; None: the client left before any worker got it."""
    latency_s: float
    """Of the worker's answer; NaN where that is no measure of the worker."""
    ok: bool


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Decisions and their outcomes, `(k,)` each, in the order of `DecisionLog.decisions`.

    What off-policy evaluation takes: the context is in the decisions, the propensity and the outcome here.
    """

    run: IntArray
    number: IntArray
    at_s: FloatArray
    pick: IntArray
    """Index of the worker; -1: shed."""
    propensity: FloatArray
    """Probability with which that pick was made."""
    finished: BoolArray
    """Whether an outcome of a worker is known."""
    served: IntArray
    """Index of the worker that served, which a retry makes differ from the pick; -1: none, or unknown."""
    latency_s: FloatArray
    """NaN: not known, or no measure of the worker."""
    ok: BoolArray
    """False where not finished, too."""


@dataclass(slots=True, eq=False)
class DecisionLog:
    """What was read; numbers are unique within a run."""

    runs: list[Run] = field(default_factory=list)
    decisions: list[RecordedDecision] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    """By run and number."""
    questions: set[tuple[int, int]] = field(default_factory=set)
    """Run and number of decisions for questions about a model or a server, which are no load."""
    cut: list[str] = field(default_factory=list)
    """Files that end in the middle, as after a crash, in words; all before that was read."""
    service: list[RecordedService] = field(default_factory=list)
    """Empty in logs of format version 1."""

    def __iter__(self) -> Iterator[RecordedDecision]:
        """Decisions, file by file, as they were made."""
        return iter(self.decisions)

    def __len__(self) -> int:
        """Return the number of decisions."""
        return len(self.decisions)

    def joined(self) -> Joined:
        """Decisions with their outcomes, as arrays."""
        nothing = Outcome(math.nan, None, math.nan, False)
        ends = [self.outcomes.get((d.run, int(d.request.number)), nothing) for d in self.decisions]
        places: dict[int, dict[str, int]] = {}
        served = []
        for decision, end in zip(self.decisions, ends, strict=True):
            names = decision.workers.names
            place = places.setdefault(id(decision.workers), {name: row for row, name in enumerate(names)})
            served.append(place.get(end.worker or "", -1))
        return Joined(
            run=np.array([d.run for d in self.decisions], np.int64),
            number=np.array([d.request.number for d in self.decisions], np.int64),
            at_s=np.array([d.at_s for d in self.decisions]),
            pick=np.array([d.pick for d in self.decisions], np.int64),
            propensity=np.array([d.propensity for d in self.decisions]),
            finished=np.array([end.worker is not None for end in ends], np.bool_),
            served=np.array(served, np.int64),
            latency_s=np.array([end.latency_s for end in ends]),
            ok=np.array([end.ok for end in ends], np.bool_),
        )


def read_log(path: Path) -> DecisionLog:
    """A file of a decision log, or all those in a folder.

    Raises:
        DecisionLogError: nothing is there, it is no decision log or one of another format version, or a line is
            damaged. A file that merely ends too early is read up to there, and named in `cut`.
    """
    files = sorted(path.glob(f"decisions-*{SUFFIX}"), key=_order) if path.is_dir() else [path]
    if not files:
        raise DecisionLogError(
            f"{path} holds no decisions-*{SUFFIX}; give the folder that decision_log.folder of the config names, or "
            "one of its files"
        )
    log = DecisionLog()
    for file in files:
        _FileReader(log, file).read()
    return log


def _order(file: Path) -> tuple[str, int]:
    return file.name.rpartition("-")[0], number_of(file)


class _FileReader:
    """Reads one file into a log; a file is complete in itself."""

    def __init__(self, log: DecisionLog, file: Path) -> None:
        self._log = log
        self._file = file
        self._run = -1
        self._workers: Workers | None = None
        self._index: dict[str, int] = {}
        self._policies: dict[int, RecordedPolicy] = {}
        self._take = {
            "header": self._header,
            "workers": self._take_workers,
            "service": self._service,
            "policy": self._policy,
            "decision": self._decision,
            "refusal": self._refusal,
            "outcome": self._outcome,
            "no_inference": self._no_inference,
        }

    def read(self) -> None:
        """All lines, up to where the file was cut."""
        number = 0
        try:
            with gzip.open(self._file, "rb") as lines:
                for number, text in enumerate(lines, 1):
                    ((kind, content),) = json.loads(text).items()
                    if number == 1 and (kind, content.get("format")) != ("header", FORMAT):
                        raise self._no_log("it does not begin with the header of one")
                    self._take[kind](content)
        except EOFError:
            self._log.cut.append(f"{self._file} ends in the middle of line {number + 1}, as after a crash")
        except OSError as error:
            if number:
                raise self._damaged(number + 1, error) from error
            raise self._no_log(str(error)) from error
        except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(number + isinstance(error, zlib.error), error) from error
        if not number and self._file.stat().st_size == 0:
            self._log.cut.append(f"{self._file} is empty, as after a crash")

    def _no_log(self, why: str) -> DecisionLogError:
        return DecisionLogError(
            f"{self._file} is no decision log: {why}; give a file that a balancer wrote to decision_log.folder"
        )

    def _damaged(self, line: int, error: Exception) -> DecisionLogError:
        return DecisionLogError(
            f"{self._file}: line {line} is damaged ({type(error).__name__}: {error}); copy the file anew from where it "
            "was written, or leave it out: every other file is complete in itself"
        )

    def _header(self, content: Mapping[str, Any]) -> None:
        if content["version"] not in _VERSIONS or tuple(content["columns"]) != COLUMNS:
            raise DecisionLogError(
                f"{self._file}: line 1: format version {content['version']} with the columns "
                f"{', '.join(content['columns'])}; this balancer reads 1 to {VERSION} with {', '.join(COLUMNS)}: "
                "use the version of the balancer that wrote it"
            )
        run = Run(**{field.name: content[field.name] for field in fields(Run)})
        if run not in self._log.runs:
            self._log.runs.append(run)
        self._run = self._log.runs.index(run)

    def _take_workers(self, content: Mapping[str, Any]) -> None:
        rows = content["rows"]
        self._workers = Workers(
            names=tuple(row["name"] for row in rows),
            devices=tuple(row["device"] for row in rows),
            weight=_frozen(np.array([row["weight"] for row in rows], np.float64)),
            name_hash=_frozen(np.array([int(row["name_hash"], 16) for row in rows], np.uint64)),
        )
        self._index = {name: row for row, name in enumerate(self._workers.names)}

    def _service(self, content: Mapping[str, Any]) -> None:
        models = tuple(
            ModelService(
                model["model"],
                model["max_batch_rows"],
                model["instances"],
                tuple((rows, executions, seconds) for rows, executions, seconds in model["batches"]),
            )
            for model in content["models"]
        )
        worker, at_s, incarnation, balancers = (content[n] for n in ("worker", "at_s", "incarnation", "balancers"))
        self._log.service.append(RecordedService(self._run, worker, at_s, incarnation, balancers, models))

    def _policy(self, content: Mapping[str, Any]) -> None:
        options = json.dumps(content["options"], sort_keys=True)
        role = content.get("role", "in_force" if content["in_force"] else "hash")  # logs of before the guard have none
        policy = RecordedPolicy(content["name"], options, content["in_force"], content["sha256"], role)
        self._policies[content["id"]] = policy

    def _decision(self, content: Mapping[str, Any]) -> None:
        workers = self._workers
        if workers is None:
            raise ValueError("no line of workers is before it")
        subset = content["subset"]
        decision = RecordedDecision(
            run=self._run,
            request=_request(content),
            at_s=content["at_s"],
            subset=None if subset is None else tuple(subset),
            workers=workers,
            columns=_array(content["columns"], "<f8").reshape(len(COLUMNS), len(workers.names)),
            eligible=_array(content["eligible"], "?"),
            policy=self._policies[content["policy"]],
            valid=content["valid"],
            probabilities=_array(content["probabilities"], "<f8"),
            pick=-1 if content["worker"] is None else self._index[content["worker"]],
            propensity=content["propensity"],
            fallbacks=tuple(content["fallbacks"]),
        )
        self._log.decisions.append(decision)

    def _refusal(self, content: Mapping[str, Any]) -> None:
        self._log.refusals.append(Refusal(self._run, _request(content), content["at_s"], content["reason"]))

    def _outcome(self, content: Mapping[str, Any]) -> None:
        latency_s = content.get("latency_s")
        self._log.outcomes[self._run, content["number"]] = Outcome(
            content["at_s"],
            content.get("worker"),
            math.nan if latency_s is None else latency_s,
            content.get("ok", False),
        )

    def _no_inference(self, content: Mapping[str, Any]) -> None:
        self._log.questions.add((self._run, content["number"]))


def _request(content: Mapping[str, Any]) -> Request:
    key, deadline_s = content["key"], content["deadline_s"]
    return Request(
        model=content["model"],
        version=content["version"],
        rows=content["rows"],
        number=content["number"],
        key=None if key is None else int(key, 16),
        deadline_s=math.inf if deadline_s is None else deadline_s,
        priority=content["priority"],
        tenant=content["tenant"],
        sequence=content["sequence"],
    )


def _array(text: str, kind: str) -> npt.NDArray[Any]:
    return np.frombuffer(bytes.fromhex(text), kind)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
