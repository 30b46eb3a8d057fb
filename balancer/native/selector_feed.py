"""Guard, rollout and shadow of decisions that Envoys make: what is written for Envoys, and what is read from them."""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from balancer.kernel.view import LiveView
from balancer.native.enums import Decider, GuardEvent
from balancer.native.layouts import SELECTOR, SIDES
from balancer.native.state import SharedState
from balancer.scheduler.canary.guard import Guard
from balancer.scheduler.canary.selector import PolicySelector, Role, Selection, Side, Standing, Ticket
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.worker import Worker
from policies.base import Request

_DECIDERS: dict[Role, int] = {"in_force": Decider.POLICY, "baseline": Decider.BASELINE, "rollout": Decider.NEW}
_SELECTOR = struct.Struct("=3Q4d" + SIDES * "Q2d")
"""As the type of that name, which NumPy takes its time to fill."""
assert _SELECTOR.size == SELECTOR.itemsize
_NOBODY = bytes(_SELECTOR.size)


class SelectorFeed:
    """Between a `PolicySelector` and the Envoys that decide as it says.

    Envoys keep to what stands. A request that may change it, or that the shadow is asked about, they leave to the
    balancer with its number; of the rest they report what guard and rollout need. A guard looks at the inputs of
    such a decision some milliseconds later.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._standing: Standing | None = None
        self._tickets: dict[int, tuple[Ticket, str, float]] = {}
        self._looks: list[tuple[Selection, Request, float]] = []
        self.restart()

    def restart(self) -> None:
        """A new shared-memory block: nothing was written to it or read from it yet."""
        self._written = b""
        self._watched = [0, 0]

    def learn(self, selector: PolicySelector | None, workers: Sequence[Worker]) -> None:
        """Take in what was reported so far; `workers`: by row. Without the lock, too."""
        if selector is None and not self._tickets:
            return
        for batch in self._state.canary_events():
            for event in batch.tolist():
                self._take(selector, workers, event)

    def _take(self, selector: PolicySelector | None, workers: Sequence[Worker], event: tuple[Any, ...]) -> None:
        number, watched, at_s, seconds, value_s, rows, priority, row, what, side, ok, look, name = event
        if what in (GuardEvent.CANARY_ENDED, GuardEvent.CANARY_DROPPED):
            ticket = self._tickets.pop(number, None)
            if ticket is not None and what == GuardEvent.CANARY_ENDED:
                ticket[0].ended(None if math.isnan(value_s) else value_s, bool(ok), at_s)
            elif ticket is not None:
                ticket[0].dropped()
            return
        if selector is None or self._standing is None:
            return
        choice = self._standing.sides[side].choice
        self._count(choice.guard, side, watched - _is_watched(choice))
        self._watched[side] = watched
        model = name.decode("utf-8", "replace")
        request = Request(model, rows=rows, deadline_s=value_s, priority=priority, number=number)
        if look:
            self._looks.append((choice, request, at_s))
        found = selector.answered(choice, seconds, request, at_s, what == GuardEvent.CANARY_TAKEN)
        if found is not None and 0 <= row < len(workers):
            self._tickets[number] = found, workers[row].name, at_s

    def _count(self, guard: Guard | None, side: int, watched: int) -> None:
        if guard is not None:
            guard.were_quick(watched - self._watched[side])
        self._watched[side] = watched

    def look(self, selector: PolicySelector | None, view: Callable[[Request, float], LiveView]) -> None:
        """Show guards the decisions that they are to look at, each once, as the fleet is now; with the lock held."""
        looks, self._looks = self._looks, []
        for choice, request, at_s in looks:
            self.claimed()
            if selector is None:
                continue
            try:
                selector.look(choice, request, view(request, at_s), at_s)
            except RoutingError:
                continue  # nobody may serve it any more: another one is looked at

    def settle(self, selector: PolicySelector | None, workers: Sequence[Worker]) -> None:
        """Take in the rest; with the lock held, before anything is changed."""
        self.learn(selector, workers)
        if self._standing is not None:
            for number, side in enumerate(self._standing.sides):
                self._count(side.choice.guard, number, self._state.watched(number))

    def publish(self, selector: PolicySelector | None) -> None:
        """Write what stands, if that changed; with the lock held."""
        now, self._standing = _NOBODY, None
        if selector is not None:
            self._standing = selector.standing()
            now = _packed(selector, self._standing)
        if now != self._written:
            self._state.set_selector(now)
            self._written = now

    def claimed(self) -> None:
        """What Envoys waited for may have been done: what stands is to be written again."""
        self._written = b""

    def gone(self, worker: str) -> None:
        """It was removed, so what is in flight there says nothing."""
        self.dropped([number for number, (_, at, _) in self._tickets.items() if at == worker])

    def dropped(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            ticket = self._tickets.pop(number, None)
            if ticket is not None:
                ticket[0].dropped()

    def expire(self, before_s: float) -> None:
        """Likewise of what was decided before that: its end may have been reported to nobody."""
        due = []
        for number, (_, _, at_s) in self._tickets.items():
            if at_s >= before_s:
                break
            due.append(number)
        self.dropped(due)


def _is_watched(choice: Selection) -> bool:
    return choice.guard is not None and choice.role != "baseline"


def _side(side: Side) -> tuple[int, float, float]:
    choice = side.choice
    slow_s = choice.guard.settings.decision_s if choice.guard is not None and _is_watched(choice) else math.inf
    return _DECIDERS[choice.role], side.looks_from_s, slow_s


def _packed(selector: PolicySelector, standing: Standing) -> bytes:
    shadow = selector.shadow
    draws, share = (shadow.draws, shadow.share) if shadow is not None else (0, 0.0)
    values = 1, standing.draws, draws, standing.share, share, standing.until_s, standing.tickets_from_s
    first, second = standing.sides
    return _SELECTOR.pack(*values, *_side(first), *_side(second))
