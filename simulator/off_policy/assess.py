"""A target policy assessed by the decisions of a log: weights and support, and estimates of what it would have got.

Every decision is taken by itself: the queues were the logging policy's, and only this one pick is the target's. So the
estimates are of a one-step deviation, and say nothing of the queues that the target would have made for itself.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from balancer.server.decision_log.lines import COLUMNS
from balancer.server.decision_log.recorded import DecisionLog, RecordedPolicy
from policies.base import BoolArray, FloatArray, IntArray, Policy
from simulator.compare.statistics import Estimate
from simulator.off_policy.estimators import (
    Blocks,
    Isotonic,
    Value,
    block_length_s,
    clipped,
    correlation_s,
    effective_sample_size,
    folds,
    value,
)
from simulator.replay import answers

LITTLE = 0.01
"""A pick that the logging policy made less often than this is taken to have no support."""
CERTAIN = 0.99
"""A decision with a probability above this was as good as determined."""
TAIL = 0.99
_LEAST_DECISIONS = 20
_MOST_BLOCKS = 2000


@dataclass(frozen=True, slots=True, eq=False)
class LoggedDecisions:
    """The decisions of a log that tell of policies, in order of time; `(k,)` each.

    Those of the policy in force, which picked, and whose outcome is known: neither keys nor sequences, which the router
    places itself, but where they are asked for; nor questions about models and servers.
    """

    index: IntArray
    at_s: FloatArray
    """Since 1970."""
    propensity: FloatArray
    ok: BoolArray
    latency_s: FloatArray
    """NaN: no measure of the worker."""
    first_s: FloatArray
    """Of an answer to a prompt, until its first token; NaN: not known."""
    deadline_s: FloatArray
    """Infinite: none."""
    completion_s: FloatArray
    without_outcome: int
    """Decisions left out since nobody knows how they ended."""
    failed: int
    """Decisions among these that ended in an error; no latency is counted of them."""
    certain_share: float
    """Share whose pick was as good as determined."""
    logging: tuple[tuple[RecordedPolicy, int], ...]
    """Policies that decided, and how often; those in force first, the most frequent of them before."""

    def __len__(self) -> int:
        return len(self.index)


def decisions_of(log: DecisionLog, *, placed: bool = False) -> LoggedDecisions:
    """The decisions that tell of policies; `placed`: and those of the router's hash.

    Raises:
        ValueError: there are too few, none has an outcome, or a propensity is no probability.
    """
    joined = log.joined()
    in_force = [
        i
        for i, d in enumerate(log)
        if (placed or d.policy.in_force) and d.pick >= 0 and (d.run, d.request.number) not in log.questions
    ]
    if not in_force:
        raise ValueError("the log has no decision of a policy in force: record requests without routing keys")
    for i in in_force:
        propensity = log.decisions[i].propensity
        if not 0 < propensity <= 1 + 1e-9:
            raise ValueError(
                f"propensity of decision {log.decisions[i].request.number} is {propensity:g}, which is no probability "
                "of a pick: give a log that this balancer wrote, with probabilities"
            )
    known = [i for i in in_force if joined.finished[i]]
    if len(known) < _LEAST_DECISIONS:
        raise ValueError(
            f"the log has outcomes of {len(known)} of {len(in_force)} decisions, {_LEAST_DECISIONS} are the least: "
            "record more requests; where outcomes are missing, Envoy's access log must reach the balancer that records"
        )
    made = [log.decisions[i] for i in known]
    at_s = np.array([log.unix_s(d.run, d.at_s) for d in made])
    order = np.argsort(at_s, kind="stable")
    index = np.array(known, np.int64)[order]
    counts = Counter(d.policy for d in made)
    completion = COLUMNS.index("completion_s")
    latency_s, ok = joined.latency_s[index], joined.ok[index]
    return LoggedDecisions(
        index=index,
        at_s=at_s[order],
        propensity=joined.propensity[index],
        ok=ok,
        latency_s=np.where(ok, latency_s, np.nan),
        first_s=np.where(ok, joined.first_s[index], np.nan),
        deadline_s=np.array([float(np.max(d.request.deadline_s)) for d in made])[order],
        completion_s=np.array([d.columns[completion][d.pick] for d in made])[order],
        without_outcome=len(in_force) - len(known),
        failed=int(np.count_nonzero(~ok)),
        certain_share=float(np.mean([d.probabilities.max() > CERTAIN * d.probabilities.sum() for d in made])),
        logging=tuple(sorted(counts.items(), key=lambda each: (each[0].in_force, each[1]), reverse=True)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    """One kind of outcome, of those decisions that have it, with its model fitted on other blocks."""

    rows: IntArray
    outcome: FloatArray
    blocks: Blocks
    fold: IntArray
    """Of each of `LoggedDecisions`; -1: it has no such outcome."""
    models: list[Isotonic]
    late: bool
    """Whether the model's number is the negative of the expected completion over the deadline."""

    def expect(self, fold: IntArray, completion_s: FloatArray, deadline_s: FloatArray) -> FloatArray:
        """Of picks with these expected completions, `(b, ...)`; what has no such outcome gets 0."""
        feature = -completion_s / deadline_s if self.late else completion_s
        expected = np.zeros_like(completion_s)
        for each, model in enumerate(self.models):
            expected[fold == each] = model(feature[fold == each])
        return expected


def _outcome(d: LoggedDecisions, has: BoolArray, values: FloatArray, length_s: float, late: bool) -> _Outcome:
    rows = np.flatnonzero(has)
    blocks = Blocks(d.at_s[rows], length_s)
    feature = -d.completion_s[rows] / d.deadline_s[rows] if late else d.completion_s[rows]
    fold = np.full(len(d), -1, np.int64)
    models = []
    for each, (fitted, used) in enumerate(folds(blocks.of_decision)):
        models.append(Isotonic(feature[fitted], values[rows][fitted]))
        fold[rows[used]] = each
    return _Outcome(rows, values[rows], blocks, fold, models, late)


@dataclass(frozen=True, slots=True)
class Weights:
    effective: float
    """Effective number of decisions (Kish)."""
    share: float
    """That over the number of decisions."""
    largest: float
    largest_share: float
    """Of the sum of all weights."""
    mean: Estimate
    """1 where the log covers the target's picks and the propensities are right; unclipped."""
    unsupported: float
    """Share of the target's picks that the logging policy made with a probability below `LITTLE`."""
    clipped_share: float
    """Of the sum of all weights, cut off by clipping."""
    shed: float
    """Share of the decisions that the target would have shed; they count as they were."""


@dataclass(frozen=True, slots=True)
class Assessed:
    policy: str
    weights: Weights
    mean_s: Value
    p99_logged_s: Estimate
    p99_s: Estimate
    """Self-normalised weighted quantile."""
    in_time: Value | None
    """Share of the requests with a deadline that were answered well within it; None: none has one."""


class Assessor:
    """Assesses policies by one log; what does not depend on the policy is made once."""

    def __init__(self, log: DecisionLog, block_s: float | None = None, clip: float | None = None) -> None:
        """`block_s`: length of blocks; None: see `estimators.block_length_s`. `clip`: the largest weight; None: any.

        Raises:
            ValueError: as `decisions_of`, too few decisions have a latency, or the blocks are too short.
        """
        self.decisions = d = decisions_of(log)
        self._log = log
        self._clip = clip
        measured = np.isfinite(d.latency_s)
        if np.count_nonzero(measured) < _LEAST_DECISIONS:
            raise ValueError(
                f"the log has {np.count_nonzero(measured)} latencies of requests answered well, {_LEAST_DECISIONS} are "
                "the least: record for longer, or look why requests fail"
            )
        times_s, latency_s = d.at_s[measured], d.latency_s[measured]
        self.correlation_s = correlation_s(times_s, latency_s)
        self.block_s = block_length_s(times_s, latency_s) if block_s is None else block_s
        span_s = float(times_s[-1] - times_s[0])
        if span_s > _MOST_BLOCKS * self.block_s:
            raise ValueError(
                f"blocks of {self.block_s:g} s are more than {_MOST_BLOCKS:,} in a log of {span_s:.3g} s: give "
                f"{span_s / _MOST_BLOCKS:.2g} s at least"
            )
        self._latency = _outcome(d, measured, d.latency_s, self.block_s, late=False)
        self.blocks = self._latency.blocks.count
        due = np.isfinite(d.deadline_s) & (d.deadline_s > 0)
        in_time = (d.ok & (d.latency_s <= d.deadline_s)).astype(np.float64)
        self._in_time = _outcome(d, due, in_time, self.block_s, late=True) if due.any() else None

    def assess(self, name: str, policy: Policy) -> Assessed:
        d = self.decisions
        probability, unsupported, total = np.zeros(len(d)), np.zeros(len(d)), np.zeros(len(d))
        outcomes = [each for each in (self._latency, self._in_time) if each is not None]
        expected = [np.zeros(len(d)) for _ in outcomes]
        place = np.full(len(self._log), -1, np.int64)
        place[d.index] = np.arange(len(d))
        for indices, view, shares in answers(self._log, policy):
            own = place[indices] >= 0
            if not own.any():
                continue
            rows, pi, completion_s = place[indices[own]], shares[own], view.completion_s[own]
            made = [self._log.decisions[index] for index in indices[own]]
            picks = np.array([each.pick for each in made])
            total[rows] = pi.sum(axis=-1)
            pi = np.where(total[rows, None] > 0, pi, np.arange(pi.shape[1]) == picks[:, None])
            mu = np.stack([each.probabilities for each in made])
            mu = mu / mu.sum(axis=-1, keepdims=True)
            probability[rows] = pi[np.arange(len(rows)), picks]
            unsupported[rows] = np.where(mu < LITTLE, pi, 0.0).sum(axis=-1)
            for of, outcome in zip(expected, outcomes, strict=True):
                believed = outcome.expect(outcome.fold[rows], completion_s, d.deadline_s[rows][:, None])
                of[rows] = (pi * believed).sum(axis=-1)
        shed = total <= 0
        weight = np.where(shed, 1.0, probability / d.propensity)
        in_time = None
        if self._in_time is not None:
            in_time = self._value(self._in_time, weight, expected[1])
        ones = np.ones(len(self._latency.rows))
        latency = self._latency
        used = clipped(weight, self._clip)[latency.rows]
        return Assessed(
            policy=name,
            weights=self._weights(weight, unsupported, shed),
            mean_s=self._value(latency, weight, expected[0]),
            p99_logged_s=latency.blocks.quantile(latency.outcome, ones, TAIL).estimate(),
            p99_s=latency.blocks.quantile(latency.outcome, used, TAIL).estimate(),
            in_time=in_time,
        )

    def _value(self, outcome: _Outcome, weight: FloatArray, expected: FloatArray) -> Value:
        d, rows = self.decisions, outcome.rows
        given = outcome.expect(outcome.fold[rows], d.completion_s[rows], d.deadline_s[rows])
        return value(outcome.blocks, clipped(weight, self._clip)[rows], outcome.outcome, given, expected[rows])

    def _weights(self, weight: FloatArray, unsupported: FloatArray, shed: BoolArray) -> Weights:
        used = clipped(weight, self._clip)
        total = float(weight.sum())
        effective = effective_sample_size(used)
        return Weights(
            effective=effective,
            share=effective / len(weight),
            largest=float(used.max()),
            largest_share=float(used.max() / used.sum()) if used.any() else 1.0,
            mean=Blocks(self.decisions.at_s, self.block_s).mean(weight).estimate(),
            unsupported=float(unsupported.mean()),
            clipped_share=float((weight - used).sum()) / total if total > 0 else 0.0,
            shed=float(np.mean(shed)),
        )
