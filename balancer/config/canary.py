"""The sections of the config file about policies beside the one in force: guard, shadow, rollout and learning.

As in `sections`, the text under a field is its documentation, and defaults are the core's.
"""

import dataclasses
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from balancer.config.sections import PolicyName, PolicySection
from balancer.files.schema import Fraction, Positive, StrictModel, field_error
from balancer.kernel.settings import GuardSettings, Margins, RolloutSettings

_GUARD = GuardSettings()
_ROLLOUT = RolloutSettings()
_MARGINS = Margins()
_MISSING_SHARE = 0.5
"""The guard counts a report as missing from this share of `stale_after_s` on."""
_SETTLE_SHARE = 0.4
"""The share of each window that is left out at its start, while the other policy's queues drain: 0.1 s of 0.25 s."""
_WATCH_STEPS = 6
"""So many steps long a rollout is watched at share 1."""
Share = Annotated[float, Field(gt=0, le=1)]


def _ascending(shares: tuple[float, ...]) -> tuple[float, ...]:
    if any(before >= after for before, after in pairwise(shares)):
        raise ValueError("must ascend, such as [0.01, 0.1, 0.5, 1.0]")
    return shares


Shares = Annotated[tuple[Share, ...], Field(min_length=1), AfterValidator(_ascending)]


class BaselineSection(PolicySection):
    """The policy that decides in the other's stead; not a trained one."""


class MarginsSection(StrictModel):
    """What the policy may do worse than the baseline, and a rollout's new policy than the old one."""

    late: Fraction = _MARGINS.late
    """Share of requests that miss their deadline, more than the other's."""
    tail: float = Field(default=_MARGINS.tail, ge=0)
    """Latency of slow requests, relative: 0.1 is 10% slower."""
    errors: Fraction = _MARGINS.errors
    """Share of requests that fail by the worker's fault, more than the other's."""

    def margins(self) -> Margins:
        return Margins(**dict(self))


class GuardSection(StrictModel):
    """A baseline decides while something is wrong with the policy or its inputs."""

    enabled: Literal["auto", True, False] = "auto"
    """`auto`: for trained policies; true: for any policy; false: never."""
    baseline: BaselineSection = Field(default_factory=BaselineSection)
    """What decides instead; of the policies that are not trained."""
    quiet_s: float = Field(default=_GUARD.quiet_s, gt=0, le=_GUARD.max_quiet_s)
    """The policy returns when no cause was seen for so many seconds. Breaches soon after double that, up to 600."""
    window_s: float = Field(default=_GUARD.window_s, ge=0)
    """Seconds of a window in which policy and baseline are compared by their outcomes; 0: they are not."""
    window_every_s: Positive = _GUARD.window_every_s
    """Mean seconds between two windows of the baseline."""
    margins: MarginsSection = MarginsSection()
    """What the policy may do worse than the baseline; a rollout's new policy than the old, too."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.window_every_s < 3 * self.window_s:
            rule = f"must be at least three times window_s, {self.window_s:g}: a pair of windows, and a gap"
            raise field_error(("window_every_s",), self.window_every_s, rule)
        return self

    def settings(self, stale_after_s: float) -> GuardSettings:
        """What the core is configured with; `stale_after_s`: of reports, as the section telemetry says."""
        return GuardSettings(
            report_age_s=_MISSING_SHARE * stale_after_s,
            quiet_s=self.quiet_s,
            window_s=self.window_s,
            settle_s=_SETTLE_SHARE * self.window_s,
            window_every_s=self.window_every_s,
            margins=self.margins.margins(),
        )


class ShadowSection(PolicySection):
    """A policy that is asked beside the one that decides, and whose answers go nowhere. `/explain` and metrics tell how
    often both pick the same worker. Latency they cannot compare."""

    name: PolicyName
    """One of `balancer policies`."""
    share: Share = 0.1
    """Share of decisions that it is asked about. Its time is added to those requests'."""


class RolloutSection(PolicySection):
    """Moves traffic from `policy` to another in steps, and back for good where the new one's requests end worse."""

    name: PolicyName
    """The new policy, one of `balancer policies`."""
    shares: Shares = _ROLLOUT.shares
    """Shares of the requests that the new policy decides, ascending. At 1 it is watched for six steps and 100 pairs of
    windows; then write it into `policy`, and remove this section."""
    step_s: Positive = _ROLLOUT.step_s
    """Least seconds of a step. There is no next step while evidence stands against the new policy."""

    def settings(self, guard: GuardSettings) -> RolloutSettings:
        """What the core is configured with; `guard` as the section guard says, though a rollout always has windows."""
        if not guard.window_s:
            guard = dataclasses.replace(
                guard, window_s=_GUARD.window_s, settle_s=_GUARD.settle_s, window_every_s=_GUARD.window_every_s
            )
        return RolloutSettings(self.shares, self.step_s, watch_s=_WATCH_STEPS * self.step_s, guard=guard)


class LearningSection(StrictModel):
    """Policies that `balancer learn`, beside the balancer, trains on its decision log and puts in force."""

    folder: str | None = None
    """Folder of the learner, relative to the config file; null: there is none."""
    enabled: bool = True
    """false: what it put in force is taken back at once, and it does nothing."""
    shadow_share: Share = 0.1
    """Share of the decisions that a new policy is asked about before it gets any."""
    shares: Shares = _ROLLOUT.shares
    """Steps of its rollout, as `rollout.shares`."""
    step_s: Positive = _ROLLOUT.step_s
    """Least seconds of a step."""
