"""Guard, rollout and shadow of decisions that Envoys make: what they are told, and what they tell."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from balancer.core.trials.guard import Guard
from balancer.core.trials.steering import Choice, Role, Side, Standing, Steering, Ticket
from balancer.core.worker import Worker
from balancer.front.layouts import SIDES, STEERING, Decider, Told
from balancer.front.state import State
from policies.base import Request

_DECIDERS: dict[Role, int] = {"in_force": Decider.POLICY, "baseline": Decider.BASELINE, "rollout": Decider.NEW}
_STEERING = struct.Struct("=3Q4d" + SIDES * "Q2d")
"""As the type of that name, which NumPy takes its time to fill."""
assert _STEERING.size == STEERING.itemsize
_NOBODY = bytes(_STEERING.size)


class Trials:
    """Between a `Steering` and the Envoys that decide as it says.

    Envoys keep to what stands. A request that may change it, or that the shadow is asked about, they leave to the
    balancer with its number; of the others they tell what guard and rollout need. A guard looks at the inputs of such a
    decision some milliseconds later.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._standing: Standing | None = None
        self._tickets: dict[int, tuple[Ticket, str, float]] = {}
        self._looks: list[tuple[Choice, Request, float]] = []
        self.restart()

    def restart(self) -> None:
        """The state is another one, which nobody was told anything by."""
        self._told = b""
        self._watched = [0, 0]

    def learn(self, steering: Steering | None, workers: Sequence[Worker]) -> None:
        """Take in what was told so far; `workers`: by row. Without the lock, too."""
        if steering is None and not self._tickets:
            return
        for batch in self._state.trials():
            for told in batch.tolist():
                self._take(steering, workers, told)

    def _take(self, steering: Steering | None, workers: Sequence[Worker], told: tuple[Any, ...]) -> None:
        number, watched, at_s, seconds, value_s, rows, priority, row, what, side, ok, look, name = told
        if what in (Told.TRIAL_ENDED, Told.TRIAL_DROPPED):
            ticket = self._tickets.pop(number, None)
            if ticket is not None and what == Told.TRIAL_ENDED:
                ticket[0].ended(None if math.isnan(value_s) else value_s, bool(ok), at_s)
            elif ticket is not None:
                ticket[0].dropped()
            return
        if steering is None or self._standing is None:
            return
        choice = self._standing.sides[side].choice
        self._count(choice.guard, side, watched - _is_watched(choice))
        self._watched[side] = watched
        model = name.decode("utf-8", "replace")
        if look:
            request = Request(model, rows=rows, deadline_s=value_s, priority=priority, number=number)
            self._looks.append((choice, request, at_s))
        found = steering.answered(choice, seconds, model, value_s, at_s, what == Told.TRIAL_TAKEN)
        if found is not None and 0 <= row < len(workers):
            self._tickets[number] = found, workers[row].name, at_s

    def took(self, steering: Steering | None, now_s: float, decider: int, seconds: float) -> None:
        """A policy by whose tables Envoys decide answered in so long: its guard is told, as of any decision."""
        for side in () if steering is None else steering.standing().sides:
            if _DECIDERS[side.choice.role] == decider and _is_watched(side.choice) and side.choice.guard is not None:
                side.choice.guard.took(seconds, now_s)
                return

    def _count(self, guard: Guard | None, side: int, watched: int) -> None:
        """Decisions that were not told of, since they were quick."""
        if guard is not None:
            guard.were_quick(watched - self._watched[side])
        self._watched[side] = watched

    def looks(self) -> Iterator[tuple[Choice, Request, float]]:
        """Decisions that a guard is to look at: who made it, of what request, and when. Each once."""
        looks, self._looks = self._looks, []
        yield from looks

    def settle(self, steering: Steering | None, workers: Sequence[Worker]) -> None:
        """Take in the rest; with the lock held, before anything is changed."""
        self.learn(steering, workers)
        if self._standing is not None:
            for number, side in enumerate(self._standing.sides):
                self._count(side.choice.guard, number, self._state.watched(number))

    def publish(self, steering: Steering | None) -> None:
        """Say what stands, if that changed; with the lock held."""
        said, self._standing = _NOBODY, None
        if steering is not None:
            self._standing = steering.standing()
            said = _said(steering, self._standing)
        if said != self._told:
            self._state.steer(said)
            self._told = said

    def claimed(self) -> None:
        """What Envoys waited for may have been done: what stands is to be said again."""
        self._told = b""

    def gone(self, worker: str) -> None:
        """It was removed, so what is in flight there says nothing."""
        self.dropped([number for number, (_, at, _) in self._tickets.items() if at == worker])

    def dropped(self, numbers: Iterable[int]) -> None:
        """Nobody expects the ends of these any more."""
        for number in numbers:
            ticket = self._tickets.pop(number, None)
            if ticket is not None:
                ticket[0].dropped()

    def expire(self, before_s: float) -> None:
        """Likewise of what was decided before that: its end may have been told to nobody."""
        due = []
        for number, (_, _, at_s) in self._tickets.items():
            if at_s >= before_s:
                break
            due.append(number)
        self.dropped(due)


def _is_watched(choice: Choice) -> bool:
    return choice.guard is not None and choice.role != "baseline"


def _side(side: Side) -> tuple[int, float, float]:
    choice = side.choice
    slow_s = choice.guard.settings.decision_s if choice.guard is not None and _is_watched(choice) else math.inf
    return _DECIDERS[choice.role], side.looks_from_s, slow_s


def _said(steering: Steering, standing: Standing) -> bytes:
    """As `STEERING`."""
    shadow = steering.shadow
    lots, share = (shadow.lots, shadow.share) if shadow is not None else (0, 0.0)
    said = 1, standing.lots, lots, standing.share, share, standing.until_s, standing.tickets_from_s
    first, second = standing.sides
    return _STEERING.pack(*said, *_side(first), *_side(second))
