"""Run what is configured around a policy: its guard, a rollout, a shadow.

Production's own `Steering` decides who decides, one for each balancer of each environment. Policies answer for the
whole batch at once (`answers.py`), and tickets are told of outcomes in the order and at the time at which the balancer
hears of them. Decisions take no time in the simulator, so none is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from balancer.core.keys import OF_SEQUENCES, placing
from balancer.core.trials.guard import Change
from balancer.core.trials.rollout import RolloutChange
from balancer.core.trials.steering import Plan, Role, Steering, Ticket
from policies.base import FleetView, FloatArray, Policy, Request, least
from policies.hashing import mix
from simulator.answers import Answers, Row, together
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.engine import layout as at
from simulator.result import Result, Status
from simulator.spec import FleetSpec

NOBODY, BY_POLICY, BY_BASELINE, BY_NEW = -1, 0, 1, 2
_CODES: dict[Role, int] = {"hash": NOBODY, "in_force": BY_POLICY, "baseline": BY_BASELINE, "rollout": BY_NEW}
_UNANSWERED = (int(Status.UNAVAILABLE), at.LOST)
"""Ends whose time is no latency of a worker."""
_VOID = (int(Status.CANCELLED), at.REFUSED)
"""Ends that say nothing of a worker, nor of who picked it."""


@dataclass(frozen=True, slots=True, eq=False)
class SteeredResult:
    """What a run tells, and who decided in it."""

    result: Result
    decided: npt.NDArray[np.int8]
    """Who decided each request, `(e, k)`: `BY_POLICY`, `BY_BASELINE`, `BY_NEW` (the policy that is rolled out);
    `NOBODY`: its key placed it, or no worker could serve it.
    """
    changes: tuple[tuple[Change, ...], ...]
    """Falls and returns of the guards of each environment, in time."""
    rollouts: tuple[tuple[RolloutChange, ...], ...] = ()
    """Steps and ends of the rollouts of each environment, in time."""
    steerings: tuple[tuple[Steering, ...], ...] = ()
    """Of each balancer of each environment, as the run left them: what `/guard` shows in production."""


def run_steered(
    fleet: FleetSpec | Sequence[FleetSpec],
    arrivals: Sequence[Arrivals],
    policy: Policy,
    plan: Plan,
    *,
    seeds: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> SteeredResult:
    """Route every request of every environment, as `simulator.run.run` does with reports as in production.

    Args:
        fleet: One for all environments, or one for each.
        arrivals: One environment each; all of one length.
        policy: The policy in force.
        plan: What is configured beside it.
        seeds: As in `run`; of the plan's lots, too: balancer `b` has `mix(seed) ^ b`.
        progress: Called now and then with the number of requests decided since the last call.
    """
    fleets = [fleet] * len(arrivals) if isinstance(fleet, FleetSpec) else list(fleet)
    seeds = range(len(arrivals)) if seeds is None else seeds
    batch = Batch(fleets, arrivals, seeds, sequences_outside=True)
    crew = _Crew(batch, policy, plan, seeds)
    waiting = batch.start()
    while waiting:
        if progress is not None:
            progress(waiting)
        waiting = batch.step(batch.draw(crew.probabilities()))
    crew.hear()
    heard = crew.heard
    return SteeredResult(
        batch.result(),
        crew.decided,
        tuple(tuple(each.guards) for each in heard),
        tuple(tuple(each.rollouts) for each in heard),
        tuple(map(tuple, crew.steerings)),
    )


class _Heard:
    """Keeps what the steerings of an environment tell."""

    def __init__(self) -> None:
        self.guards: list[Change] = []
        self.rollouts: list[RolloutChange] = []

    def guard_changed(self, policy: str, change: Change) -> None:
        del policy
        self.guards.append(change)

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        del policy
        self.rollouts.append(change)


class _Crew:
    """The steerings of a batch, and the tickets of its requests."""

    def __init__(self, batch: Batch, policy: Policy, plan: Plan, seeds: Sequence[int]) -> None:
        self._batch = batch
        self.decided = np.full(batch.sim.state.status.shape, NOBODY, np.int8)
        self.heard = [_Heard() for _ in batch.fleets]
        policy, plan = (
            together(policy),
            replace(
                plan,
                baseline=plan.baseline and together(plan.baseline),
                shadow=plan.shadow and together(plan.shadow),
                new=plan.new and together(plan.new),
            ),
        )
        self.steerings = [
            [Steering(policy, plan, mix(seed) ^ b, listener=heard) for b in range(fleet.balancers)]
            for fleet, seed, heard in zip(batch.fleets, seeds, self.heard, strict=True)
        ]
        self._models = [[model.name for model in fleet.models] for fleet in batch.fleets]
        self._outcome_s = [fleet.network.outcome_s for fleet in batch.fleets]
        self._tickets: list[dict[int, Ticket]] = [{} for _ in batch.fleets]
        """By request."""
        self._told = [0] * len(batch.fleets)
        """How many of the outcomes that balancers heard were told to tickets."""

    def probabilities(self) -> FloatArray:
        """Of who decides in each environment that waits, `(e, n)`; zero in the others."""
        self.hear()
        batch, answers = self._batch, Answers(self._batch)
        found = np.zeros(answers.view.eligible.shape)
        requests, now_s = self._requests(), batch.sim.asked.now_s.tolist()
        deciding, balancers = batch.deciding.tolist(), batch.sim.asked.balancer.tolist()
        for e in np.flatnonzero(batch.waiting).tolist():
            steering = self.steerings[e][balancers[e]]
            found[e] = self._answer(answers, e, deciding[e], steering, requests[e], now_s[e])
        return found

    def hear(self) -> None:
        """Tell the tickets what balancers have heard by now."""
        for e, count in enumerate(self._batch.sim.state.counts[:, at.HEARD].tolist()):
            if count > self._told[e]:
                self._tell(e, count)

    def _answer(
        self, answers: Answers, e: int, k: int, steering: Steering, request: Request, now_s: float
    ) -> FloatArray:
        """`Router._answer`."""
        assert isinstance(request.number, int)  # it is of one environment
        choice = steering.choose(request.number, now_s)
        sticky_keys = self._batch.fleets[e].settings.sticky_keys
        by = placing(choice.policy, request.key is not None, sticky_keys, request.sequence)
        if by is not choice.policy:
            placed: FloatArray = (answers.of_sequences if by is OF_SEQUENCES else answers.by_key)[e]
            return placed
        view = cast(FleetView, Row(answers, e))  # it has all columns, though nothing in it says so
        answer = steering.answer(choice, request, view, now_s)
        probabilities = answer.probabilities
        if probabilities is None:
            probabilities = least(view.pending, view.eligible)
        steering.watch(request, view, probabilities)
        self.decided[e, k] = _CODES[answer.role]
        if answer.ticket is not None:
            self._tickets[e][k] = answer.ticket
        return probabilities

    def _requests(self) -> list[Request]:
        """What waits, one of each environment."""
        asked = self._batch.sim.asked
        names_of = ("model", "rows", "number", "key", "deadline_s", "priority", "sequence")
        columns = [getattr(asked, name).tolist() for name in names_of]
        return [
            Request(names[model], "", rows, number, key or None, deadline_s, priority, sequence=sequence)
            for names, model, rows, number, key, deadline_s, priority, sequence in zip(
                self._models, *columns, strict=True
            )
        ]

    def _tell(self, e: int, count: int) -> None:
        """`Router._finished`, for tickets."""
        x, tickets = self._batch.sim.state, self._tickets[e]
        for k in x.heard[e, self._told[e] : count].tolist():
            ticket = tickets.pop(k, None)
            status, resolved_s = int(x.status[e, k]), float(x.resolved_s[e, k])
            if ticket is not None and status in _VOID:
                ticket.dropped()
            elif ticket is not None:
                unmeasured = status in _UNANSWERED or self._batch.sim.demand.responses[e, k] > 0
                latency_s = None if unmeasured else resolved_s - float(x.sent_s[e, k])
                ticket.ended(latency_s, status == Status.OK, resolved_s + self._outcome_s[e])
        self._told[e] = count
