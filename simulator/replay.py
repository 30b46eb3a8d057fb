"""Replays a production decision log through batched code: are the decisions the same, bit for bit?

Decisions of as many workers, asked of the same policy for the same model, become one batch with a leading axis; the
policy is the production's own class, and the draw is the router's. With another policy the same says what that would
have picked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.kernel import limits_and_draw
from balancer.kernel.policy_answers import is_shipped
from balancer.server.decision_log.lines import COLUMNS, arithmetic
from balancer.server.decision_log.recorded import DecisionLog, RecordedDecision, RecordedPolicy, Run
from policies.base import BoolArray, FloatArray, IntArray, Policy, Request, UintArray, least
from policies.columns import Columns
from policies.hashing import hash_draw, mix, model_hash_of, unit
from simulator.engine import rows

_BATCH = 4096
_SAME = ("probabilities", "picks", "fallbacks")
_MOST_SHOWN = 10
_NOT_IN_FORCE = ("baseline", "rollout")


def columns_of(decisions: Sequence[RecordedDecision]) -> Columns:
    """What was recorded of some decisions with equally many workers, `(b, n)` each."""
    columns = np.stack([decision.columns for decision in decisions], axis=1)
    names = np.stack([decision.workers.name_hash for decision in decisions])
    models = np.array([model_hash_of(decision.request.model) for decision in decisions], np.uint64)[:, None]
    arrays: dict[str, Any] = {
        "eligible": np.stack([decision.eligible for decision in decisions]),
        "weight": np.stack([decision.workers.weight for decision in decisions]),
        "name_hash": names,
        "identity": hash_draw(names, models),
        "kind_identity": hash_draw(np.stack([decision.workers.kind_hash for decision in decisions]), models),
        **dict(zip(COLUMNS, columns, strict=True)),
    }
    for array in arrays.values():
        array.flags.writeable = False
    return Columns(**{field.name: arrays[field.name] for field in fields(Columns)})


@dataclass(frozen=True, slots=True)
class Mismatch:
    decision: int
    what: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared of the decisions of one policy, whatever its options, and how many were the same."""

    policy: str
    role: str
    decisions: int
    probabilities: int
    """Decisions whose probabilities, and propensity, are the same in every bit."""
    picks: int
    fallbacks: int


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """Arrays are `(k,)`, in the order of `DecisionLog.decisions`."""

    recorded: IntArray
    """Index of the worker that was picked; -1: shed."""
    replayed: IntArray
    probability: FloatArray
    """That the replayed policy gives to the recorded pick; 0 where that was none. Divided by the recorded propensity it
    is the importance weight of off-policy evaluation."""
    compared: tuple[Compared, ...]
    mismatches: tuple[Mismatch, ...]
    left_out: BoolArray
    """Decisions that the given policy was not asked about, since neither was the one in force: a guard's baseline or a
    rollout decided them. They are replayed as recorded."""
    changed: tuple[str, ...]
    """What is not as it was when the decisions were made, in words, so that a difference need not surprise."""

    @property
    def agreement(self) -> float:
        """Share of the decisions not left out with the same pick; NaN where there are none."""
        same = (self.recorded == self.replayed)[~self.left_out]
        return float(np.mean(same)) if len(same) else float("nan")

    @property
    def exact(self) -> bool:
        """Whether every decision came out the same: probabilities bit for bit, pick and fallbacks."""
        return all(c.probabilities == c.picks == c.fallbacks == c.decisions for c in self.compared)


def replay(log: DecisionLog, policy: Policy | None = None) -> ReplayResult:
    """Decide again all that was decided.

    Args:
        log: From `read_log`.
        policy: None: the recorded one. Another takes the place of the one in force; keys and sequences go on being
            placed by the router's hash, where it would do so.

    Raises:
        DecisionLogError: a recorded policy is not installed.
    """
    recorded = np.array([decision.pick for decision in log], np.int64)
    replayed, probability = np.full(len(log), -1, np.int64), np.zeros(len(log))
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    mismatches: list[Mismatch] = []
    for decider, indices in _batches(log, policy):
        batch = [log.decisions[index] for index in indices]
        again = _decide(decider, batch, [log.runs[decision.run] for decision in batch])
        replayed[indices], probability[indices] = again.picks, again.given
        differences = list(_differences(indices, batch, again))
        mismatches += differences
        counts = found[batch[0].policy.name, batch[0].policy.role]
        counts["decisions"] += len(batch)
        counts.update(mismatch.what for mismatch in differences)
    return ReplayResult(
        recorded=recorded,
        replayed=replayed,
        probability=probability,
        compared=tuple(
            Compared(*who, counts["decisions"], *(counts["decisions"] - counts[what] for what in _SAME))
            for who, counts in found.items()
        ),
        mismatches=tuple(sorted(mismatches, key=lambda mismatch: mismatch.decision)[:_MOST_SHOWN]),
        left_out=np.array([policy is not None and d.policy.role in _NOT_IN_FORCE for d in log], np.bool_),
        changed=tuple(_changed(log)) if policy is None else (),
    )


def answers(log: DecisionLog, policy: Policy) -> Iterator[tuple[IntArray, Columns, FloatArray]]:
    """What a policy would have answered, in the place of the one in force.

    Yields:
        Indices of decisions, `(b,)`, what their policy saw, and the probabilities, `(b, n)`; rows of zeros are shed.
    """
    for decider, indices in _batches(log, policy):
        batch = [log.decisions[index] for index in indices]
        view = columns_of(batch)
        probabilities = _answered(decider, _request(batch), view, log.runs[batch[0].run].compiled)
        total = probabilities.sum(axis=-1, keepdims=True)
        yield np.array(indices), view, probabilities / np.where(total > 0, total, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Again:
    """A batch decided again; `(b, n)` and `(b,)`."""

    probabilities: FloatArray
    picks: IntArray
    propensity: FloatArray
    given: FloatArray
    fallbacks: list[tuple[str, ...]]


def _batches(log: DecisionLog, policy: Policy | None) -> Iterator[tuple[Policy | None, list[int]]]:
    """Who is to be asked (None: the least pending worker stands in), and the decisions that can be asked at once."""
    groups: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, decision in enumerate(log):
        q = decision.request
        kind = (q.model, q.version, q.tenant, q.sequence, q.key is None)
        compiled = log.runs[decision.run].compiled
        groups[(decision.policy, decision.valid, compiled, len(decision.workers.names), *kind)].append(index)
    built: dict[RecordedPolicy, Policy] = {}
    for indices in groups.values():
        first = log.decisions[indices[0]]
        decider: Policy | None = policy
        if policy is None or not _answers(policy, first):
            if first.policy not in built:
                built[first.policy] = first.policy.build()
            decider = built[first.policy] if first.valid else None
        for start in range(0, len(indices), _BATCH):
            yield decider, indices[start : start + _BATCH]


def _answers(policy: Policy, decision: RecordedDecision) -> bool:
    """Whether the router would ask that policy, were it in force, rather than its own hash."""
    role = decision.policy.role
    return role == "in_force" or (role == "hash" and policy.needs_key and not decision.request.sequence)


def _decide(decider: Policy | None, batch: Sequence[RecordedDecision], runs: Sequence[Run]) -> _Again:
    view = columns_of(batch)
    probabilities = _answered(decider, _request(batch), view, runs[0].compiled)
    picks, propensity, given = np.full(len(batch), -1), np.zeros(len(batch)), np.zeros(len(batch))
    fallbacks = []
    for row, (decision, run) in enumerate(zip(batch, runs, strict=True)):
        shares = probabilities[row].tolist()
        pick = limits_and_draw.draw(shares, unit(mix(mix(run.seed) ^ int(decision.request.number))))
        total = limits_and_draw.total_of(shares)
        if pick >= 0:
            picks[row], propensity[row] = pick, shares[pick] / total
        if decision.pick >= 0 and total > 0:
            given[row] = shares[decision.pick] / total
        fallbacks.append(_fallbacks(decision, view.eligible[row], view.pending[row], pick))
    return _Again(probabilities, picks, propensity, given, fallbacks)


def _answered(decider: Policy | None, request: Request, view: Columns, compiled: bool) -> FloatArray:
    if decider is None:
        return least(view.pending, view.eligible)
    # Programs have one form, whoever runs them.
    by_kernel = compiled or not is_shipped(decider)
    return rows.answer(decider, request, view) if by_kernel else decider.probabilities(request, view)


def _request(batch: Sequence[RecordedDecision]) -> Request:
    """One request for the batch: numbers as `(b, 1)`, the rest is the same for all."""
    requests = [decision.request for decision in batch]
    first = requests[0]

    def column(name: str, kind: type[np.generic]) -> npt.NDArray[Any]:
        return np.array([[getattr(request, name)] for request in requests], kind)

    return replace(
        first,
        rows=column("rows", np.float64),
        number=column("number", np.uint64),
        key=None if first.key is None else column("key", np.uint64),
        deadline_s=column("deadline_s", np.float64),
        priority=column("priority", np.float64),
    )


def _fallbacks(decision: RecordedDecision, eligible: BoolArray, pending: FloatArray, pick: int) -> tuple[str, ...]:
    line = np.where(eligible, pending, np.inf)
    line[pick] = np.inf
    found = [-1] * len(decision.fallbacks)
    limits_and_draw.name_least(line.tolist(), len(found), found)
    return tuple(decision.workers.names[row] for row in found if row >= 0)


def _differences(indices: Sequence[int], batch: Sequence[RecordedDecision], again: _Again) -> Iterator[Mismatch]:
    recorded = np.stack([decision.probabilities for decision in batch])
    propensity = np.array([decision.propensity for decision in batch])
    equal = (_bits(recorded) == _bits(again.probabilities)).all(axis=-1) & (
        _bits(propensity) == _bits(again.propensity)
    )
    for place, (index, decision) in enumerate(zip(indices, batch, strict=True)):
        names = decision.workers.names
        if not equal[place]:
            yield Mismatch(index, "probabilities", _text(recorded[place]), _text(again.probabilities[place]))
        if decision.pick != again.picks[place]:
            was, now = (names[row] if row >= 0 else "shed" for row in (decision.pick, again.picks[place]))
            yield Mismatch(index, "picks", was, now)
        if decision.fallbacks != again.fallbacks[place]:
            yield Mismatch(index, "fallbacks", ", ".join(decision.fallbacks), ", ".join(again.fallbacks[place]))


def _bits(values: FloatArray) -> UintArray:
    """Compares what `==` would take for equal (zeros of both signs) or never would (NaN)."""
    return np.ascontiguousarray(values, np.float64).view(np.uint64)


def _text(values: FloatArray) -> str:
    return " ".join(map(repr, values.tolist()))


def _changed(log: DecisionLog) -> Iterator[str]:
    decider = {decision.policy for decision in log}
    for name in sorted({policy.name for policy in decider if policy.is_changed()}):
        yield f"the source of policy {name} is not the one that decided"
    here = arithmetic()
    for there in sorted({run.arithmetic for run in log.runs} - {here}):
        yield f"decided with {there}; here is {here}: exp and log may differ in the last bit"
