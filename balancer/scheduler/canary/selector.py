"""Who decides a request: the policy in force, its guard's baseline, or the policy that is being rolled out.

Stands between the router and the policies where a guard, a shadow or a rollout is configured; a router without has one
policy and asks it. Time is an argument; a stopwatch, for the time that decisions take, is given from outside.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from balancer.kernel.checked_answer import answer
from balancer.kernel.settings import GuardSettings, RolloutSettings
from balancer.scheduler.canary.guard import Guard, PolicyChange, look
from balancer.scheduler.canary.rollout import Rollout, RolloutChange, RolloutTicket
from balancer.scheduler.canary.shadow import Shadow
from balancer.scheduler.canary.switchback import Arm, Finding, WindowTicket
from policies.base import FleetView, FloatArray, Policy, Request

Role = Literal["in_force", "hash", "baseline", "rollout"]
"""What a policy that answers is there for: `policy` of the config; the router's own hash of keys and sequences; the
guard's baseline; the policy that is being rolled out."""
Ticket = WindowTicket | RolloutTicket
"""What the router keeps with a request, and tells how that ended."""
_IN_FORCE: Role = "in_force"
_BASELINE: Role = "baseline"
_ROLLED_OUT: Role = "rollout"
_Part = tuple[Policy, GuardSettings | None, Policy | None, Guard | None]


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """What is configured beside the policy in force. Equal plans keep their state."""

    guard: GuardSettings | None = None
    """None: the policy in force is not watched."""
    baseline: Policy | None = None
    """Of the guard."""
    shadow: Policy | None = None
    shadow_share: float = 0.0
    rollout: RolloutSettings | None = None
    new: Policy | None = None
    """That is rolled out."""
    guard_new: GuardSettings | None = None
    """Of the new policy once its rollout is finished; None: nobody watches it then. Until then, the rollout does."""

    def __bool__(self) -> bool:
        return self.guard is not None or self.shadow is not None or self.rollout is not None


class CanaryListener:
    """Is called with what changes, and does nothing with it. Whoever does something must not raise."""

    def guard_changed(self, policy: str, change: PolicyChange) -> None: ...

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        """The rollout of the policy took a step or holds one, began to watch, ended or returned."""


class Selection(NamedTuple):
    """Who is to decide a request, before it is known what the fleet looks like."""

    policy: Policy
    role: Role
    guard: Guard | None
    """That watches the decision, if one does."""
    watched: Policy | None
    """The policy that the guard watches."""


class Side(NamedTuple):
    choice: Selection
    looks_from_s: float


class Standing(NamedTuple):
    """Who decides which numbers, until a request comes that may change that, or an event does."""

    sides: tuple[Side, Side]
    share: float
    """The second one's: the numbers k with `unit(mix(draws ^ k)) < share`."""
    draws: int
    until_s: float
    """From when on a request may change it: by `choose`."""
    tickets_from_s: float


class PolicySelector:
    """Guard, shadow and rollout of one router, from when they are configured until that changes."""

    def __init__(
        self,
        policy: Policy,
        plan: CanaryPlan,
        seed: int = 0,
        stopwatch: Callable[[], float] = lambda: 0.0,
        listener: CanaryListener | None = None,
        before: PolicySelector | None = None,
        now_s: float = 0.0,
    ) -> None:
        """`stopwatch` gives seconds since any moment; without one, no decision is slow. `before` is what this replaces:
        the state of what is configured as it was stays.
        """
        self.policy = policy
        self.plan = plan
        self.stopwatch = stopwatch
        self._listener = listener or CanaryListener()
        known = [] if before is None else before._parts(now_s)
        self.rollout = self._rollout(seed, before)
        self.guard = self._guard(policy, plan.guard, seed, known)
        self.new_guard = self._guard(plan.new, plan.guard_new, seed + 1, known)
        """Of the new policy, once it has proven itself."""
        self.rollout_guard = self._make_rollout_guard(before)
        """Of the new policy, until then: what it finds ends the rollout."""
        self.shadow = self._shadow(seed, before)

    def choose(self, number: int, now_s: float) -> Selection:
        rollout = self.rollout
        if rollout is None:
            return self._seat(self.policy, "in_force", self.guard, True, now_s)
        new = self.plan.new
        takes = rollout.takes(number, now_s)
        if new is not None and takes:
            return self._seat(new, "rollout", self.new_guard_now, rollout.state == "finished", now_s)
        return self._seat(self.policy, "in_force", self.guard, rollout.state == "returned", now_s)

    def standing(self) -> Standing:
        """What `choose` returns until `until_s`, or until something is reported."""
        rollout, new = self.rollout, self.plan.new
        if rollout is None or new is None:
            side, until_s = self._side(self.policy, _IN_FORCE, self.guard, True)
            tickets_from_s = self.guard.tickets_from_s if self.guard is not None else math.inf
            return Standing((side, side), 0.0, 0, until_s, tickets_from_s)
        share, until_s = rollout.standing
        finished, guard = rollout.state == "finished", self.new_guard_now
        old, old_s = self._side(self.policy, _IN_FORCE, self.guard, rollout.state == "returned")
        taken, taken_s = self._side(new, _ROLLED_OUT, guard, finished)
        watching = guard if finished else self.guard
        tickets_from_s = rollout.tickets_from_s
        if rollout.over:
            tickets_from_s = watching.tickets_from_s if watching is not None else math.inf
        return Standing(
            (old, taken), share, rollout.draws, min(until_s, taken_s if finished else old_s), tickets_from_s
        )

    @property
    def new_guard_now(self) -> Guard | None:
        """Of the policy that is rolled out, as far as that is."""
        return self.new_guard if self.rollout is not None and self.rollout.state == "finished" else self.rollout_guard

    def look(self, choice: Selection, request: Request, view: FleetView, now_s: float) -> None:
        """Let the guard look at a decision, if it is to: at the policy's inputs, or whether the policy may return."""
        guard = choice.guard
        if guard is None or now_s < guard.looks_from_s(_arm(choice)):
            return
        if choice.role != "baseline":
            guard.looked(look(choice.policy, request, view, guard.settings.report_age_s), now_s)
        elif choice.watched is not None:
            self._probe(guard, choice.watched, request, view, now_s)

    def observes(self, choice: Selection, number: int, now_s: float) -> bool:
        """Whether somebody is to see the decision of that number: a guard its inputs, a shadow the answer."""
        guard, shadow = choice.guard, self.shadow
        looks = guard is not None and now_s >= guard.looks_from_s(_arm(choice))
        return looks or (shadow is not None and shadow.wants(number))

    def answered(
        self,
        choice: Selection,
        seconds: float,
        request: Request,
        now_s: float,
        worker: bool = True,
        view: FleetView | None = None,
    ) -> Ticket | None:
        """Who was chosen had a valid answer after so long, which gave the request to a worker, or shed it; `view`:
        what it rests on, for a guard that looks at that.
        """
        guard = choice.guard
        if guard is not None and choice.role != "baseline":
            guard.took(seconds, now_s)
        if view is not None:
            self.look(choice, request, view, now_s)
        return self._ticket(choice, request.model, float(request.deadline_s), now_s, worker)

    def instead(
        self, choice: Selection, failure: str, seconds: float, request: Request, view: FleetView, now_s: float
    ) -> tuple[Policy, Role] | None:
        """Who was chosen had no valid answer: who decides in its place. The old policy does for a new one, the baseline
        for a guarded one; None: nobody.
        """
        guard = choice.guard
        judged = guard is not None and choice.role != "baseline"
        if guard is not None and judged:
            guard.took(seconds, now_s)
            guard.failed(failure, now_s)
        else:
            self.look(choice, request, view, now_s)
        if choice.role == "rollout" and self.rollout is not None and self.rollout.state != "finished":
            self.rollout.give_up(Finding("invalid", failure), now_s)
            return self.policy, _IN_FORCE
        if judged and self.plan.baseline is not None:
            return self.plan.baseline, _BASELINE
        return None

    def watch(self, request: Request, view: FleetView, served: FloatArray) -> None:
        """Let the shadow answer to what has just been decided, if it is to."""
        shadow = self.shadow
        assert isinstance(request.number, int)  # arrays are for the simulator's views
        if shadow is not None and shadow.wants(request.number):
            begun_s = self.stopwatch()
            shadow.see(request, view, served)
            shadow.seconds += self.stopwatch() - begun_s

    def main(self) -> tuple[Policy, Role]:
        """Who decides now, windows and the arms of a running rollout aside."""
        policy, role, guard = self.policy, _IN_FORCE, self.guard
        rollout = self.rollout
        if rollout is not None and rollout.state in ("watched", "finished") and self.plan.new is not None:
            guard = self.new_guard_now
            policy, role = self.plan.new, _ROLLED_OUT
        if guard is not None and guard.breach is not None and self.plan.baseline is not None:
            return self.plan.baseline, "baseline"
        return policy, role

    def guards(self) -> dict[str, Guard]:
        found = {}
        rollout = self.rollout
        if rollout is not None and rollout.state != "returned" and self.plan.new is not None:
            guard = self.new_guard_now
            if guard is not None:
                found[self.plan.new.name] = guard
        if self.guard is not None:
            found[self.policy.name] = self.guard
        return found

    def explain(self, now_s: float) -> dict[str, Any]:
        rollout = None
        if self.rollout is not None and self.plan.new is not None:
            rollout = {"from": self.policy.name, "to": self.plan.new.name, **self.rollout.explain(now_s)}
        return {
            "decides": self.main()[0].name,
            "guards": {name: guard.state(now_s) for name, guard in self.guards().items()},
            "shadow": None if self.shadow is None else self.shadow.explain(),
            "rollout": rollout,
        }

    def _seat(self, policy: Policy, role: Role, guard: Guard | None, windows: bool, now_s: float) -> Selection:
        if guard is None:
            return Selection(policy, role, None, None)
        # Two comparisons at once would disturb each other, so there are no windows during a rollout.
        falls_back = guard.breach is not None if not windows else guard.arm(now_s) is Arm.BASELINE
        if falls_back and self.plan.baseline is not None:
            return Selection(self.plan.baseline, "baseline", guard, policy)
        return Selection(policy, role, guard, policy)

    def _side(self, policy: Policy, role: Role, guard: Guard | None, windows: bool) -> tuple[Side, float]:
        if guard is None:
            return Side(Selection(policy, role, None, None), math.inf), math.inf
        arm, until_s = guard.standing(windows)
        choice = Selection(policy, role, guard, policy)
        if arm is Arm.BASELINE and self.plan.baseline is not None:
            choice = Selection(self.plan.baseline, "baseline", guard, policy)
        return Side(choice, guard.looks_from_s(_arm(choice))), until_s

    def _probe(self, guard: Guard, policy: Policy, request: Request, view: FleetView, now_s: float) -> None:
        """Ask the policy that is out of service, to see whether it may return; its answer goes nowhere."""
        begun_s = self.stopwatch()
        _, failure = answer(policy, request, view)
        guard.probed(self.stopwatch() - begun_s)
        found = look(policy, request, view, guard.settings.report_age_s, failure)
        guard.looked(found, now_s, self.stopwatch() - begun_s)

    def _ticket(self, choice: Selection, model: str, deadline_s: float, now_s: float, worker: bool) -> Ticket | None:
        ticket: Ticket | None = None
        if self.rollout is not None and not self.rollout.over:
            ticket = self.rollout.ticket(choice.role == "rollout", model, deadline_s, now_s)
        elif choice.guard is not None:
            ticket = choice.guard.ticket(model, deadline_s, now_s)
        if ticket is None or worker:
            return ticket
        ticket.ended(None, False, now_s)  # shed: nobody else will tell
        return None

    def _parts(self, now_s: float) -> list[_Part]:
        parts = [(self.policy, self.plan.guard, self.plan.baseline, self.guard)]
        if self.rollout is not None and self.rollout.state == "finished" and self.plan.new is not None:
            parts.append((self.plan.new, self.plan.guard_new, self.plan.baseline, self.new_guard))
        for *_, guard in parts:
            if guard is not None:
                guard.switchback.stop(now_s)
        return parts

    def _guard(
        self, policy: Policy | None, settings: GuardSettings | None, seed: int, known: list[_Part]
    ) -> Guard | None:
        if policy is None or settings is None:
            return None
        tell = functools.partial(self._listener.guard_changed, policy.name)
        for old_policy, old_settings, old_baseline, old in known:
            if old is not None and (old_policy, old_settings, old_baseline) == (policy, settings, self.plan.baseline):
                old.on_change = tell
                return old
        return Guard(settings, seed, tell)

    def _make_rollout_guard(self, before: PolicySelector | None) -> Guard | None:
        """Trained or not: its answers must be valid and in time, and a trained one's inputs as in training."""
        new, rollout = self.plan.new, self.plan.rollout
        if new is None or rollout is None:
            return None
        if before is not None and before.rollout_guard is not None and before.rollout is self.rollout:
            guard = before.rollout_guard
        else:
            # The rollout has the windows. Reports that are missing say nothing against a policy that is not trained.
            share = rollout.guard.report_share if new.trained else 1.0
            guard = Guard(dataclasses.replace(rollout.guard, window_s=0.0, report_share=share))
        guard.on_change = self._rollout_guard_changed
        return guard

    def _rollout(self, seed: int, before: PolicySelector | None) -> Rollout | None:
        plan = self.plan
        if plan.rollout is None or plan.new is None:
            return None
        tell = functools.partial(self._listener.rollout_changed, plan.new.name)
        compared = (self.policy, plan.new, plan.rollout)
        if before is not None and compared == (before.policy, before.plan.new, before.plan.rollout) and before.rollout:
            before.rollout.on_change = tell
            return before.rollout
        return Rollout(plan.rollout, seed, tell)

    def _shadow(self, seed: int, before: PolicySelector | None) -> Shadow | None:
        plan = self.plan
        if plan.shadow is None:
            return None
        compared = (self.policy, plan.shadow, plan.shadow_share)
        if before is not None and compared == (before.policy, before.plan.shadow, before.plan.shadow_share):
            return before.shadow
        return Shadow(plan.shadow, plan.shadow_share, seed)

    def _rollout_guard_changed(self, change: PolicyChange) -> None:
        if self.rollout is not None and change.fell:
            self.rollout.give_up(change.finding, change.at_s)


def _arm(choice: Selection) -> Arm:
    return Arm.BASELINE if choice.role == "baseline" else Arm.POLICY
