"""What decision logs hold, as it is read back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from balancer.config.policy_options import policy_class, read_policy_file
from balancer.errors import OperatorError
from balancer.kernel.settings import Settings
from balancer.server.decision_log.lines import policy_hash
from policies.base import BoolArray, FloatArray, IntArray, Policy, Request, UintArray


class DecisionLogError(OperatorError):
    """A decision log that cannot be read or replayed; names file and line, and the remedy."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process of a balancer, from one start of its recording to the end."""

    process: str
    seed: int
    share: float
    started_s: float
    """In the router's clock, which is that of all `at_s`."""
    started_unix_s: float
    """The same moment, in seconds since 1970."""
    arithmetic: str
    compiled: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """Who there was, in the order of the columns; `(n,)`."""

    names: tuple[str, ...]
    devices: tuple[str, ...]
    """Device kinds; empty where unknown."""
    weight: FloatArray
    name_hash: UintArray
    kind_hash: UintArray


@dataclass(frozen=True, slots=True)
class ModelService:
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
    models: tuple[ModelService, ...]


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    name: str
    options: str
    """JSON, but for infinite numbers."""
    in_force: bool
    sha256: str
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
        return policy_hash(self.build()) != self.sha256


@dataclass(frozen=True, slots=True, eq=False)
class RecordedDecision:
    run: int
    """Index into `DecisionLog.runs`."""
    request: Request
    at_s: float
    subset: tuple[str, ...] | None
    """Workers that alone were allowed; None: no such wish. `eligible` says the same."""
    workers: Workers
    columns: FloatArray
    """In the order of `lines.COLUMNS`; `(columns, n)`."""
    eligible: BoolArray
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
    run: int
    request: Request
    at_s: float
    reason: str
    """unknown_model, no_worker or shed (by limits)."""


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    at_s: float
    worker: str | None
    """That served; empty: none did; None: the client left before any worker got it."""
    latency_s: float
    """Of the worker's answer; NaN where that is no measure of the worker."""
    ok: bool
    first_s: float = math.nan
    """When the first token of an answer to a prompt came; NaN: not known."""
    said_s: float = math.nan
    """When the last one did."""
    output_tokens: float = 0.0
    """Tokens that the worker generated; 0: not known."""
    cached_tokens: float = 0.0
    """Tokens of the prompt that the worker reported as cached."""


@dataclass(frozen=True, slots=True, eq=False)
class DecisionsWithOutcomes:
    """Decisions and their outcomes, `(k,)` each, in the order of `DecisionLog.decisions`.

    What off-policy evaluation takes: the context is in the decisions, the propensity and the outcome here.
    """

    run: IntArray
    number: IntArray
    at_s: FloatArray
    pick: IntArray
    propensity: FloatArray
    finished: BoolArray
    served: IntArray
    """Index of the worker that served, which a retry makes differ from the pick; -1: none, or unknown."""
    latency_s: FloatArray
    """Of a generated answer: from the decision to the last token. NaN: not known, or no measure of the worker."""
    ok: BoolArray
    """False where not finished, too."""
    first_s: FloatArray
    """Of a generated answer: from the decision to the first token; NaN: not known."""
    output_tokens: FloatArray
    """Tokens that the worker generated; 0: not known."""
    cached_tokens: FloatArray
    """Tokens of the prompt that the worker reported as cached."""


@dataclass(slots=True, eq=False)
class DecisionLog:
    """What was read; numbers are unique within a run."""

    runs: list[Run] = field(default_factory=list)
    decisions: list[RecordedDecision] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    outcomes: dict[tuple[int, int], RecordedOutcome] = field(default_factory=dict)
    questions: set[tuple[int, int]] = field(default_factory=set)
    """Run and number of decisions for questions about a model or a server, which are no load."""
    cut: list[str] = field(default_factory=list)
    """Files that end in the middle, as after a crash, in words; all before that was read."""
    service: list[RecordedService] = field(default_factory=list)
    """Empty in logs of format version 1."""
    settings: Settings | None = None
    """The routers', the last ones; None before format version 7."""

    def __iter__(self) -> Iterator[RecordedDecision]:
        return iter(self.decisions)

    def __len__(self) -> int:
        return len(self.decisions)

    def last(self, hours: float) -> DecisionLog:
        """The end of it, so many hours of the time that it tells of."""
        came_s = [self.unix_s(each.run, each.at_s) for each in self.decisions]
        since_s = max(came_s, default=0.0) - 3600 * hours

        def is_late(each: RecordedDecision | Refusal | RecordedService) -> bool:
            return self.unix_s(each.run, each.at_s) >= since_s

        return replace(
            self,
            decisions=list(filter(is_late, self.decisions)),
            refusals=list(filter(is_late, self.refusals)),
            service=list(filter(is_late, self.service)),
        )

    def unix_s(self, run: int, at_s: float) -> float:
        """A time in the clock of a run, in seconds since 1970."""
        return at_s - self.runs[run].started_s + self.runs[run].started_unix_s

    def joined(self) -> DecisionsWithOutcomes:
        nothing = RecordedOutcome(math.nan, None, math.nan, False)
        ends = [self.outcomes.get((d.run, int(d.request.number)), nothing) for d in self.decisions]
        places: dict[int, dict[str, int]] = {}
        served, latency_s = [], []
        for decision, end in zip(self.decisions, ends, strict=True):
            names = decision.workers.names
            place = places.setdefault(id(decision.workers), {name: row for row, name in enumerate(names)})
            served.append(place.get(end.worker or "", -1))
            latency_s.append(end.latency_s if math.isnan(end.said_s) else end.said_s - decision.at_s)
        return DecisionsWithOutcomes(
            run=np.array([d.run for d in self.decisions], np.int64),
            number=np.array([d.request.number for d in self.decisions], np.int64),
            at_s=np.array([d.at_s for d in self.decisions]),
            pick=np.array([d.pick for d in self.decisions], np.int64),
            propensity=np.array([d.propensity for d in self.decisions]),
            finished=np.array([end.worker is not None for end in ends], np.bool_),
            served=np.array(served, np.int64),
            latency_s=np.array(latency_s),
            ok=np.array([end.ok for end in ends], np.bool_),
            first_s=np.array([end.first_s - d.at_s for d, end in zip(self.decisions, ends, strict=True)]),
            output_tokens=np.array([end.output_tokens for end in ends]),
            cached_tokens=np.array([end.cached_tokens for end in ends]),
        )
