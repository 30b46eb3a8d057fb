"""The sections of the config file about policies beside the one in force: guard, shadow and rollout.

As in `sections`, the text under a field is its documentation, and defaults are the core's.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from balancer.config.sections import PolicyName, PolicySection
from balancer.core.settings import GuardSettings, Margins, RolloutSettings
from balancer.files.schema import Fraction, Positive, StrictModel, field_error

_GUARD = GuardSettings()
_ROLLOUT = RolloutSettings()
_MARGINS = Margins()
Share = Annotated[float, Field(gt=0, le=1)]


class BaselineSection(PolicySection):
    """What decides while the guard keeps the policy out of service, and in the windows that it is compared in."""


class MarginsSection(StrictModel):
    """What a policy may do worse than the one it is compared with, without being called worse."""

    late: Fraction = _MARGINS.late
    """Share of requests that miss their deadline, in addition to the other's."""
    tail: float = Field(default=_MARGINS.tail, ge=0)
    """Latency of the slow requests, relative: 0.1 is 10% slower."""
    errors: Fraction = _MARGINS.errors
    """Share of requests that fail by the worker's fault, in addition to the other's."""

    def margins(self) -> Margins:
        """What the core is configured with."""
        return Margins(**dict(self))


class GuardSection(StrictModel):
    """Replaces a policy by a baseline while something is wrong with it or with what it sees."""

    enabled: Literal["auto", True, False] = "auto"
    """`auto`: on where the policy is a trained one; true: on for any policy; false: off."""
    baseline: BaselineSection = Field(default_factory=BaselineSection)
    """What decides instead; of the policies that are not trained."""
    report_age_s: Positive = _GUARD.report_age_s
    """A report that is older, in seconds, counts as missing; several times the period of the agents' reports."""
    report_share: Fraction = _GUARD.report_share
    """More than this share of the eligible workers with missing reports is a breach."""
    range_limit: float = Field(default=_GUARD.range_limit, ge=0)
    """Inputs farther outside of the range that the policy was trained on, in widths of that range, are strange."""
    range_share: Fraction = _GUARD.range_share
    """More than this share of the last 20 decisions looked at (50 a second at most) with strange inputs is a breach."""
    decision_s: Positive = _GUARD.decision_s
    """A decision that takes the policy longer, in seconds, is slow; more than one slow decision in ten is a breach, and
    so are three that take four times as long."""
    quiet_s: Positive = _GUARD.quiet_s
    """The policy returns once no cause was seen for so many seconds."""
    max_quiet_s: Positive = _GUARD.max_quiet_s
    """A breach within so many seconds of a return doubles the quiet period, up to this length."""
    window_s: float = Field(default=_GUARD.window_s, ge=0)
    """Length, in seconds, of the windows in which policy and baseline are compared by what comes of their requests;
    0: they are not."""
    settle_s: float = Field(default=_GUARD.settle_s, ge=0)
    """Seconds at the start of each window that are left out: the queues are still the other policy's."""
    window_every_s: Positive = _GUARD.window_every_s
    """Mean time, in seconds, between two windows of the baseline."""
    margins: MarginsSection = MarginsSection()
    """What the policy may do worse than the baseline; a rollout's new policy than the old, too."""
    false_alarm_pairs: float = Field(default=_GUARD.false_alarm_pairs, ge=10)
    """Mean number of pairs of windows, at least, until equal policies are called unequal; fewer find a worse policy
    sooner."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.window_s and self.settle_s >= self.window_s:
            rule = f"must be below window_s, {self.window_s:g}: nothing of a window would be left"
            raise field_error(("settle_s",), self.settle_s, rule)
        if self.window_every_s < 3 * self.window_s:
            rule = f"must be at least three times window_s, {self.window_s:g}: a pair of windows, and a gap"
            raise field_error(("window_every_s",), self.window_every_s, rule)
        if self.max_quiet_s < self.quiet_s:
            rule = f"must be at least quiet_s, {self.quiet_s:g}"
            raise field_error(("max_quiet_s",), self.max_quiet_s, rule)
        return self

    def settings(self) -> GuardSettings:
        """What the core is configured with."""
        plain = {name: value for name, value in self if name not in ("enabled", "baseline", "margins")}
        return GuardSettings(**plain, margins=self.margins.margins())


class ShadowSection(PolicySection):
    """A policy that is asked beside the one that decides; its answers go nowhere. `/explain` and metrics tell how often
    both would pick the same worker, and how long it takes to decide. They cannot tell latency: the queues are what the
    serving policy's picks made them."""

    name: PolicyName
    """One of `balancer policies`."""
    share: Share = 0.1
    """The share of decisions that it is asked about. It answers before the request goes on, so that its time is added
    to theirs."""


class RolloutSection(PolicySection):
    """Moves traffic from `policy` to another in steps, and back for good where the new one's requests end worse."""

    name: PolicyName
    """The new policy, one of `balancer policies`."""
    shares: tuple[Share, ...] = Field(default=_ROLLOUT.shares, min_length=1)
    """Of the requests that the new policy decides, step by step, ascending. At 1 it is watched against the old policy
    until it has proven itself. Then the rollout is finished: write the new policy into `policy`, and remove this
    section."""
    step_s: Positive = _ROLLOUT.step_s
    """Least duration of a step, in seconds. No step is taken while there is evidence against the new policy."""
    min_requests: int = Field(default=_ROLLOUT.min_requests, ge=1)
    """Requests of the new policy, and as many of the old one, that must have ended in a step before the next."""
    watch_s: Positive = _ROLLOUT.watch_s
    """The new policy has proven itself when there was no evidence against it for so many seconds at share 1, and"""
    watch_pairs: int = Field(default=_ROLLOUT.watch_pairs, ge=30)
    """in so many pairs of windows, one of the new policy and one of the old; `guard.window_s` and what belongs to it
    say how long and how often. Whatever `guard.enabled` is."""

    @field_validator("shares")
    @classmethod
    def _ascending(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if any(before >= after for before, after in pairwise(shares)):
            raise ValueError("must ascend, such as [0.01, 0.1, 0.5, 1.0]")
        return shares

    def settings(self, guard: GuardSettings) -> RolloutSettings:
        """What the core is configured with; `guard` as the section guard says, though a rollout always has windows."""
        if not guard.window_s:
            guard = dataclasses.replace(
                guard, window_s=_GUARD.window_s, settle_s=_GUARD.settle_s, window_every_s=_GUARD.window_every_s
            )
        return RolloutSettings(self.shares, self.step_s, self.min_requests, self.watch_s, self.watch_pairs, guard)
