"""Run what is configured around a policy: its guard, a rollout, a shadow.

Production's own `PolicySelector` decides who decides, one for each balancer of each environment. Policies answer for
the whole batch at once, and tickets are told of outcomes in the order and at the time at which the balancer hears of
them. Decisions take no time in the simulator, so none is slow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from balancer.kernel.checked_answer import answer
from balancer.scheduler.canary.guard import PolicyChange
from balancer.scheduler.canary.rollout import RolloutChange
from balancer.scheduler.canary.selector import CanaryListener, CanaryPlan, PolicySelector, Role, Ticket
from balancer.scheduler.keys import OF_SEQUENCES, placing
from policies.base import FleetView, FloatArray, Policy, Request, least
from policies.hashing import mix
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.engine import layout as at
from simulator.result import Result, Status
from simulator.spec import FleetSpec

Question = Literal["probabilities", "out_of_range"]
NOBODY, BY_POLICY, BY_BASELINE, BY_NEW = -1, 0, 1, 2
_CODES: dict[Role, int] = {"hash": NOBODY, "in_force": BY_POLICY, "baseline": BY_BASELINE, "rollout": BY_NEW}
_UNANSWERED = (int(Status.UNAVAILABLE), at.LOST)
"""Ends whose time is no latency of a worker."""
_VOID = (int(Status.CANCELLED), at.REFUSED)
"""Ends that say nothing of a worker, nor of who picked it."""


@dataclass(frozen=True, slots=True, eq=False)
class SelectedResult:
    result: Result
    decided: npt.NDArray[np.int8]
    """Who decided each request, `(e, k)`: `BY_POLICY`, `BY_BASELINE`, `BY_NEW` (the policy that is rolled out);
    `NOBODY`: its key placed it, or no worker could serve it.
    """
    changes: tuple[tuple[PolicyChange, ...], ...]
    rollouts: tuple[tuple[RolloutChange, ...], ...] = ()
    selectors: tuple[tuple[PolicySelector, ...], ...] = ()
    """Of each balancer of each environment, as the run left them: what `/guard` shows in production."""


def run_with_selector(
    fleet: FleetSpec | Sequence[FleetSpec],
    arrivals: Sequence[Arrivals],
    policy: Policy,
    plan: CanaryPlan,
    *,
    seeds: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> SelectedResult:
    """Route every request of every environment, as `simulator.run.run` does with reports as in production.

    Args:
        fleet: One for all environments, or one for each.
        arrivals: One environment each; all of one length.
        policy: The policy in force.
        plan: What is configured beside it.
        seeds: As in `run`; of the plan's draws, too: balancer `b` has `mix(seed) ^ b`.
        progress: Called now and then with the number of requests decided since the last call.
    """
    fleets = [fleet] * len(arrivals) if isinstance(fleet, FleetSpec) else list(fleet)
    seeds = range(len(arrivals)) if seeds is None else seeds
    batch = Batch(fleets, arrivals, seeds, sequences_outside=True)
    policy, plan = (
        _together(policy),
        replace(
            plan,
            baseline=plan.baseline and _together(plan.baseline),
            shadow=plan.shadow and _together(plan.shadow),
            new=plan.new and _together(plan.new),
        ),
    )
    environments = [_Environment(batch, e, policy, plan, seed) for e, seed in enumerate(seeds)]
    waiting = batch.start()
    while waiting:
        if progress is not None:
            progress(waiting)
        answers, requests = _Answers(batch), _requests(batch)
        probabilities = np.zeros(answers.view.eligible.shape)
        for e, environment in enumerate(environments):
            environment.observe_outcomes()
            if batch.waiting[e]:
                probabilities[e] = environment.decide(answers, requests[e])
        waiting = batch.step(batch.draw(probabilities))
    for environment in environments:
        environment.observe_outcomes()
    return SelectedResult(
        batch.result(),
        np.stack([each.decided for each in environments]),
        tuple(tuple(each.changes) for each in environments),
        tuple(tuple(each.rollouts) for each in environments),
        tuple(each.selectors for each in environments),
    )


class _Environment(CanaryListener):
    """One environment: a selector for each balancer, what changed, and the tickets of requests in flight."""

    def __init__(self, batch: Batch, e: int, policy: Policy, plan: CanaryPlan, seed: int) -> None:
        self._batch, self._e, self._fleet = batch, e, batch.fleets[e]
        self.decided = np.full(batch.sim.sizes.requests, NOBODY, np.int8)
        self.changes: list[PolicyChange] = []
        self.rollouts: list[RolloutChange] = []
        self.selectors = tuple(
            PolicySelector(policy, plan, mix(seed) ^ b, listener=self) for b in range(self._fleet.balancers)
        )
        self._tickets: dict[int, Ticket] = {}
        self._observed = 0

    def guard_changed(self, policy: str, change: PolicyChange) -> None:
        del policy
        self.changes.append(change)

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        del policy
        self.rollouts.append(change)

    def decide(self, answers: _Answers, request: Request) -> FloatArray:
        """The probabilities of whoever decides the request, `(n,)`: as `Router` does."""
        assert isinstance(request.number, int)  # it is of one environment
        pending, k = self._batch.sim.pending, int(self._batch.sim.state.counts[self._e, at.DECIDING])
        selector, now_s = self.selectors[int(pending.balancer[self._e])], float(pending.now_s[self._e])
        choice = selector.choose(request.number, now_s)
        by = placing(choice.policy, request.key is not None, self._fleet.settings.sticky_keys, request.sequence)
        if by is not choice.policy:
            placed: FloatArray = (answers.of_sequences if by is OF_SEQUENCES else answers.by_key)[self._e]
            return placed
        view = cast(FleetView, _Row(answers, self._e))  # it has all columns, though nothing in it says so
        role, ticket, begun_s = choice.role, None, selector.stopwatch()
        probabilities, failure = answer(choice.policy, request, view)
        seconds = selector.stopwatch() - begun_s
        if probabilities is not None:
            ticket = selector.answered(choice, seconds, request, now_s, bool(probabilities.any()), view)
        elif (instead := selector.instead(choice, failure, seconds, request, view, now_s)) is not None:
            by, role = instead
            probabilities, _ = answer(by, request, view)
        if probabilities is None:
            probabilities = least(view.pending, view.eligible)
        selector.watch(request, view, probabilities)
        self.decided[k] = _CODES[role]
        if ticket is not None:
            self._tickets[k] = ticket
        return probabilities

    def observe_outcomes(self) -> None:
        x, e = self._batch.sim.state, self._e
        received = int(x.counts[e, at.RECEIVED])
        for k in x.received[e, self._observed : received].tolist():
            ticket = self._tickets.pop(k, None)
            status, resolved_s = int(x.status[e, k]), float(x.resolved_s[e, k])
            if ticket is not None and status in _VOID:
                ticket.dropped()
            elif ticket is not None:
                unmeasured = status in _UNANSWERED or self._batch.sim.demand.responses[e, k] > 0
                latency_s = None if unmeasured else resolved_s - float(x.sent_s[e, k])
                ticket.ended(latency_s, status == Status.OK, resolved_s + self._fleet.network.outcome_s)
        self._observed = received


def _requests(batch: Batch) -> list[Request]:
    names_of = ("model", "rows", "number", "key", "deadline_s", "priority", "sequence", "prompt_tokens")
    columns = [getattr(batch.sim.pending, name).tolist() for name in names_of]
    return [
        Request(fleet.models[model].name, "", rows, number, key or None, deadline_s, priority, "", sequence, tokens)
        for fleet, model, rows, number, key, deadline_s, priority, sequence, tokens in zip(
            batch.fleets, *columns, strict=True
        )
    ]


class _Answers:
    """Of policies, to what waits in a batch now. Each is asked once at most, for all environments at once; one that
    raises then is asked for each environment alone, so that it fails those that it fails in production.
    """

    def __init__(self, batch: Batch) -> None:
        self.view = batch.view()
        self._batch = batch
        self._found: dict[tuple[int, Question], FloatArray | None] = {}

    @cached_property
    def by_key(self) -> FloatArray:
        """The sticky hash's, `(e, n)`."""
        return self._batch.sticky_answers(self.view)

    @cached_property
    def of_sequences(self) -> FloatArray:
        """Those of the hash that places sequences, `(e, n)`."""
        return self._batch.answers_of_sequences(self.view)

    def of(self, policy: Policy, question: Question) -> FloatArray | None:
        """In all environments, `(e, ...)`; None: the policy is to be asked alone."""
        key = id(policy), question
        if key not in self._found:
            self._found[key] = self._ask(policy, question)
        return self._found[key]

    def _ask(self, policy: Policy, question: Question) -> FloatArray | None:
        shape = self.view.eligible.shape
        try:
            if question == "out_of_range":
                return np.broadcast_to(policy.out_of_range(self._batch.request(), self.view), shape[:-1])
            answers = self._batch.answers(policy, self.view)
            return answers if answers.shape == shape else None
        except Exception:  # a third party's policy may raise anything; asked alone it tells what
            return None


class _Row:
    """The view of one environment of a batch: columns of shape `(n,)`."""

    def __init__(self, answers: _Answers, e: int) -> None:
        self.answers, self.e = answers, e

    def __getattr__(self, name: str) -> Any:
        return getattr(self.answers.view, name)[self.e]


def _together(policy: Policy) -> Policy:
    """The policy; for the environment of a `_Row` it answers what it was asked for all of them, or else as it is."""

    def answered(question: Question, request: Request, view: FleetView) -> Any:
        row = cast(_Row, view)
        found = row.answers.of(policy, question)
        return getattr(policy, question)(request, view) if found is None else found[row.e]

    alike = copy.copy(policy)
    # Frozen, as policies are; nobody else has this copy.
    for question in get_args(Question):
        object.__setattr__(alike, question, partial(answered, question))
    return alike
