"""The guard: replaces a policy by a baseline while something is wrong with it or with what it sees.

A state machine, pure: time is an argument, and so is all that happens. Who decides asks `arm`, tells what came of
it, and has inputs looked at from `looks_from_s` on; `selector.py` does so. The README of `balancer/scheduler` has a
table of the reasons.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.switchback import Arm, Finding, Switchback, WindowTicket
from policies.base import FleetView, Policy, Request

CHECK_EVERY_S = 0.02
"""Inputs are looked at no more often: enough to see a breach within a second, at no cost where requests are many."""
PROBE_EVERY_S = 0.1
"""While the baseline decides, the policy is asked for its answer no more often."""
PROBE_SHARE = 0.02
"""Of the time, that asking it may take then."""
_CHECKS = 20
"""Looks at the inputs by which they are judged; a policy returns after no fewer, or it would return unjudged."""
_SLOW_WINDOW = 100
_SLOW_LIMIT = 10.0
_SLOWEST = 4.0
"""One slow decision weighs at most so much, so that a pause of the process is no breach, and three long ones are."""


@dataclass(frozen=True, slots=True)
class Look:
    missing_share: float
    """Of the eligible workers, those without a report that is new enough."""
    out_of_range: float
    failure: str = ""
    """Why the policy's answer is none; empty: it is one, or there was no question."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    at_s: float
    fell: bool
    finding: Finding
    """Why; of a return, why it had been taken out."""
    quiet_s: float
    """How long no cause may be seen before it returns."""


def look(policy: Policy, request: Request, fleet: FleetView, report_age_s: float, failure: str = "") -> Look:
    """Look at the inputs of a decision of one fleet; a policy that fails at that has failed."""
    eligible = fleet.eligible
    count = int(np.count_nonzero(eligible))
    missing = int(np.count_nonzero((fleet.report_age_s > report_age_s) & eligible))
    outside = 0.0
    try:
        outside = float(np.max(policy.out_of_range(request, fleet)))
    except Exception as error:  # a third party's policy may raise anything; requests must not fail for it
        failure = failure or f"out_of_range: {type(error).__name__}: {error}"
    return Look(missing / count if count else 0.0, outside, failure)


class Guard:
    def __init__(
        self, settings: GuardSettings, seed: int = 0, on_change: Callable[[PolicyChange], None] = lambda change: None
    ) -> None:
        """`seed`: of the windows; `on_change` is called at every fall and return, and must not raise."""
        self.settings = settings
        self.on_change = on_change
        self.switchback = Switchback(settings, seed)
        self.breach: PolicyChange | None = None
        """The fall that is in force; None: the policy decides."""
        self.falls = 0
        self._level = 0
        self._returned_s: float | None = None
        self._quiet_since_s = 0.0
        self._probes = 0
        self._last_cause: Finding | None = None
        self._check_s = -np.inf
        self._strange: deque[bool] = deque(maxlen=_CHECKS)
        self._outside = 0.0
        self._decisions = 0
        self._slow: deque[tuple[int, float]] = deque()

    def arm(self, now_s: float) -> Arm:
        if self.breach is not None:
            return Arm.BASELINE
        arm = self.switchback.arm(now_s)
        if self.switchback.finding is not None:
            self._fall(self.switchback.finding, now_s)
            return Arm.BASELINE
        return arm

    def standing(self, windows: bool) -> tuple[Arm, float]:
        """Who decides as things stand, and when a request may change that; `windows`: whether policies are compared."""
        if self.breach is not None:
            return Arm.BASELINE, math.inf
        return self.switchback.standing if windows else (Arm.POLICY, math.inf)

    @property
    def tickets_from_s(self) -> float:
        return self.switchback.measured_s if self.breach is None else math.inf

    def ticket(self, model: str, deadline_s: float, now_s: float) -> WindowTicket | None:
        """For a request that the arm of now decided, by which its end is reported; None: nobody wants to know."""
        return self.switchback.ticket(model, deadline_s, now_s) if self.breach is None else None

    def looks_from_s(self, arm: Arm) -> float:
        """From when on the inputs of a decision by that arm are to be looked at, and reported to `looked`.

        While the baseline decides, the policy is to answer as well, and its failure is reported; not in a window.
        """
        return math.inf if arm is Arm.BASELINE and self.breach is None else self._check_s

    def looked(self, found: Look, now_s: float, seconds: float = 0.0) -> None:
        """Take in a look at the inputs; `seconds` is what it took, so that looking does not become a burden."""
        self._outside = found.out_of_range
        # A comparison with NaN is false, so NaN is strange here.
        self._strange.append(not found.out_of_range <= self.settings.range_limit)
        cause = self._cause(found)
        if self.breach is None:
            self._check_s = now_s + max(CHECK_EVERY_S, seconds / PROBE_SHARE)
            if cause is not None:
                self._fall(cause, now_s)
            return
        self._check_s = now_s + max(PROBE_EVERY_S, seconds / PROBE_SHARE)
        self._probes += 1
        if cause is not None:
            self._last_cause = cause
            self._quiet_since_s, self._probes = now_s, 0
        elif now_s - self._quiet_since_s >= self.breach.quiet_s and self._probes >= _CHECKS:
            self._return(now_s)

    def failed(self, what: str, now_s: float) -> None:
        """The policy raised, or its answer is no distribution over the eligible workers."""
        if self.breach is None:
            self._fall(Finding("invalid", what), now_s)

    def took(self, seconds: float, now_s: float) -> None:
        self.probed(seconds)
        slow = self._slow_cause() if seconds > self.settings.decision_s else None
        if slow is not None and self.breach is None:
            self._fall(slow, now_s)

    def were_quick(self, decisions: int) -> None:
        """The policy made so many decisions, each in time."""
        self._decisions += decisions

    def probed(self, seconds: float) -> None:
        """The policy was asked while the baseline decided, and answered in so long."""
        self._decisions += 1
        if seconds > self.settings.decision_s:
            self._slow.append((self._decisions, min(seconds / self.settings.decision_s, _SLOWEST)))

    def resume_fallen(self, cause: Finding, quiet_s: float, now_s: float) -> None:
        """A guard of the same settings took the policy out of service before: begin there."""
        self.breach = PolicyChange(now_s, True, cause, quiet_s)
        self._last_cause, self._quiet_since_s = cause, now_s
        self._begin(now_s)

    def state(self, now_s: float) -> dict[str, Any]:
        breach = self.breach
        return {
            "fallen_back": breach is not None,
            "reason": breach.finding.reason if breach else "",
            "why": breach.finding.words if breach else "",
            "for_s": now_s - breach.at_s if breach else 0.0,
            "quiet_s": breach.quiet_s if breach else 0.0,
            "quiet_for_s": now_s - self._quiet_since_s if breach else 0.0,
            "last_cause": self._last_cause.words if breach and self._last_cause else "",
            "falls": self.falls,
            "out_of_range": self._outside,
            "evidence_against": self.switchback.evidence,
        }

    def _cause(self, found: Look) -> Finding | None:
        """What is wrong now, as far as inputs and answers tell."""
        settings = self.settings
        if found.failure:
            return Finding("invalid", found.failure)
        if found.missing_share > settings.report_share:
            words = f"{found.missing_share:.0%} of the eligible workers have no report of the last"
            return Finding("reports", f"{words} {settings.report_age_s:g} s (limit {settings.report_share:.0%})")
        strange = sum(self._strange)
        if strange > settings.range_share * _CHECKS:
            words = f"inputs of {strange} of the last {len(self._strange)} decisions looked at are outside of training"
            return Finding("range", f"{words}, the last by {found.out_of_range:.2f} (limit {settings.range_limit:g})")
        return self._slow_cause()

    def _slow_cause(self) -> Finding | None:
        slow = self._slow
        while slow and slow[0][0] <= self._decisions - _SLOW_WINDOW:
            slow.popleft()
        if sum(weight for _, weight in slow) <= _SLOW_LIMIT:
            return None
        limit_ms = self.settings.decision_s * 1000
        return Finding("slow", f"{len(slow)} of its last {_SLOW_WINDOW} decisions took longer than {limit_ms:g} ms")

    def _fall(self, cause: Finding, now_s: float) -> None:
        settings = self.settings
        again = self._returned_s is not None and now_s - self._returned_s < settings.max_quiet_s
        self._level = self._level + 1 if again else 0
        quiet_s = min(settings.quiet_s * 2.0 ** min(self._level, 60), max(settings.max_quiet_s, settings.quiet_s))
        self.falls += 1
        self.breach = PolicyChange(now_s, True, cause, quiet_s)
        self._last_cause = cause
        self._quiet_since_s, self._probes = now_s, 0
        self._begin(now_s)
        self.on_change(self.breach)

    def _return(self, now_s: float) -> None:
        assert self.breach is not None  # the caller looked
        change = PolicyChange(now_s, False, self.breach.finding, self.breach.quiet_s)
        self.breach = None
        self._returned_s = now_s
        self._begin(now_s)
        self.on_change(change)

    def _begin(self, now_s: float) -> None:
        """What was counted under the other state says nothing in this one."""
        self._strange.clear()
        self._slow.clear()
        self.switchback.reset(now_s)
