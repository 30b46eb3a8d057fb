"""What Envoys tell of their decisions, taken to guard and rollout; and what is said to them."""

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from support.guarded import Moody, guarded

from balancer.kernel.settings import GuardSettings, RolloutSettings
from balancer.native.enums import Decider, GuardEvent
from balancer.native.layouts import CANARY_EVENT, SELECTOR
from balancer.native.selector_feed import SelectorFeed
from balancer.native.state import SharedState
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.worker import Worker
from policies import BUILTIN

GUARD = GuardSettings(window_s=0.0, report_age_s=1e9)
LEAST = BUILTIN["least_requests"]()
WORKERS = [Worker("w0")]


class FakeState:
    """Has the events that a test wants read."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.written = np.zeros((), SELECTOR)
        self.decisions = [0, 0]

    def canary_events(self) -> Iterator[Any]:
        if self.waiting:
            yield np.array(self.waiting, CANARY_EVENT)
        self.waiting = []

    def watched(self, side: int) -> int:
        return self.decisions[side]

    def set_selector(self, selector: bytes) -> None:
        self.written = np.frombuffer(selector, SELECTOR)[0]

    def report(self, **values: Any) -> None:
        event = np.zeros((), CANARY_EVENT)
        for name, value in values.items():
            event[name] = value
        self.waiting.append(event)

    def decided(self, number: int, what: int = GuardEvent.CANARY_TAKEN, side: int = 0, **values: Any) -> None:
        self.decisions[side] += 1
        watched, at_s = self.decisions[side], 0.01 * number
        self.report(number=number, at_s=at_s, watched=watched, what=what, side=side, value_s=1.0, model=b"m", **values)

    def ended(self, number: int, *, ok: bool = True, what: int = GuardEvent.CANARY_ENDED) -> None:
        self.report(number=number, at_s=0.01 * number + 0.02, value_s=0.02, what=what, ok=ok)


def feed_of(state: FakeState) -> SelectorFeed:
    return SelectorFeed(cast(SharedState, state))


@pytest.mark.parametrize("quick", [0, 60])
def test_slow_decisions_are_weighed_among_the_quick_ones_that_are_not_reported(quick: int) -> None:
    alone, state = guarded(GUARD), FakeState()
    together, feed = PolicySelector(Moody(), CanaryPlan(guard=GUARD, baseline=LEAST)), feed_of(state)
    feed.publish(together)
    selector = alone.router.selector
    assert selector is not None
    assert selector.guard is not None
    for number in range(12):
        for _ in range(quick):
            selector.guard.took(0.0, 0.01 * number)
        selector.guard.took(0.02, 0.01 * number)
        state.decisions[0] += quick
        state.decided(number, seconds=0.02)
    feed.settle(together, WORKERS)
    feed.publish(together)
    assert together.guard is not None
    assert (together.guard.breach is None) == (selector.guard.breach is None) == (quick > 0)
    assert state.written["sides"][0]["decider"] == (Decider.POLICY if quick else Decider.BASELINE)


def rolled_out(state: FakeState) -> tuple[PolicySelector, SelectorFeed]:
    """With a rollout that has begun, at half."""
    plan = CanaryPlan(rollout=RolloutSettings(shares=(0.5, 1.0), guard=GUARD), new=LEAST)
    selector, feed = PolicySelector(Moody(), plan), feed_of(state)
    selector.choose(0, 0.0)
    feed.publish(selector)
    return selector, feed


def compared(selector: PolicySelector) -> tuple[int, int]:
    """Requests of the old policy and of the new one that have ended."""
    shown = selector.explain(1.0)["rollout"]
    return shown["old"]["requests"], shown["new"]["requests"]


def test_who_decides_half_is_written_and_what_ended_counts_for_who_decided_it() -> None:
    state = FakeState()
    selector, feed = rolled_out(state)
    assert [int(side["decider"]) for side in state.written["sides"]] == [Decider.POLICY, Decider.NEW]
    assert state.written["share"] == 0.5
    assert state.written["compared_from_s"] == -math.inf
    for number, side in ((1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (6, 0)):
        state.decided(number, side=side)
    for number in (1, 2, 3):
        state.ended(number, ok=False)
    state.ended(4, what=GuardEvent.CANARY_DROPPED)
    feed.settle(selector, WORKERS)
    assert compared(selector) == (1, 2)
    feed.dropped([5])
    feed.gone("w0")
    state.ended(5)
    state.ended(6)
    state.ended(7)  # of which nothing was told
    feed.settle(selector, WORKERS)
    assert compared(selector) == (1, 2)


def test_ends_that_were_lost_are_waited_for_no_longer_than_outcomes() -> None:
    state = FakeState()
    selector, feed = rolled_out(state)
    state.decided(1)
    state.decided(900)
    feed.settle(selector, WORKERS)
    feed.expire(before_s=5.0)
    state.ended(1)
    state.ended(900)
    feed.settle(selector, WORKERS)
    assert compared(selector) == (1, 0)


def test_without_guard_rollout_and_shadow_nothing_is_steered() -> None:
    state = FakeState()
    _, feed = rolled_out(state)
    assert state.written["on"] == 1
    feed.publish(None)
    assert state.written["on"] == 0


def test_a_guard_looks_once_at_what_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    state = FakeState()
    moody = Moody()
    selector, feed = PolicySelector(moody, CanaryPlan(guard=GUARD, baseline=LEAST)), feed_of(state)
    feed.publish(selector)
    state.decided(7, look=1, rows=3.0, priority=2.0)
    state.decided(8)
    feed.settle(selector, WORKERS)
    looked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(selector, "look", lambda *arguments: looked.append(arguments))
    for _ in range(2):
        feed.look(selector, lambda request, at_s: (request.number, at_s))
    ((choice, request, view, at_s),) = looked
    assert (choice.policy, request.model, request.rows, request.priority, request.number) == (moody, "m", 3.0, 2.0, 7)
    assert (view, at_s) == ((7, 0.07), 0.07)
