"""Policies that misbehave now and then, and what is configured around policies, at random."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from hypothesis import strategies as st

from balancer.kernel.settings import GuardSettings, Margins, RolloutSettings
from balancer.scheduler.canary.selector import CanaryPlan
from policies import BUILTIN
from policies.base import FleetView, FloatArray, Policy, Request, least, option

Misbehaviour = Literal["none", "nan", "heavy", "ineligible", "raises", "sheds", "strange", "rangeless"]


@dataclasses.dataclass(frozen=True)
class Fickle(Policy):
    """Misbehaves at some numbers of requests, for one fleet or many; else the least pending worker."""

    name: ClassVar[str] = "fickle"
    summary: ClassVar[str] = "Misbehaves now and then."
    source: ClassVar[str] = "these tests"
    trained: ClassVar[bool] = True

    does: Misbehaviour = option("none", "What it does")
    every: int = option(8, "Once in so many requests", ge=1)
    of: int = option(1, "of so many in a row")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        usual = least(fleet.pending, fleet.eligible)
        now = self._misbehaves(request)
        match self.does:
            case "nan":
                return np.where(now, np.nan, usual)
            case "heavy":
                return np.where(now, 2 * usual, usual)
            case "ineligible":
                return np.where(now, 1.0 / usual.shape[-1], usual)
            case "sheds":
                return np.where(now, 0.0, usual)
            case "raises" if now.any():
                raise RuntimeError("fickle")
        return usual

    def out_of_range(self, request: Request, fleet: FleetView) -> FloatArray:
        if self.does == "rangeless" and self._misbehaves(request).any():
            raise RuntimeError("no range")
        now = self._misbehaves(request)
        return np.where(now[..., 0] if now.ndim else now, float(self.does == "strange"), 0.0)

    def _misbehaves(self, request: Request) -> np.ndarray:
        return np.asarray(request.number) // self.of % self.every == self.every - 1


guards = st.builds(
    GuardSettings,
    report_age_s=st.sampled_from([1e9, 1e9, 1e9, 0.1]),
    range_share=st.sampled_from([0.5, 0.1]),
    quiet_s=st.sampled_from([0.05, 1.0]),
    max_quiet_s=st.sampled_from([0.05, 4.0]),
    window_s=st.sampled_from([0.125, 0.02, 0.5, 0.0]),
    settle_s=st.sampled_from([0.005, 0.0]),
    window_every_s=st.sampled_from([0.05, 0.5]),
    margins=st.sampled_from([Margins(0.0, 0.0, 0.0), Margins()]),
    false_alarm_pairs=st.sampled_from([0.4, 0.7, 10_000.0]),
)

rollouts = st.builds(
    RolloutSettings,
    shares=st.sampled_from([(1.0,), (0.5, 1.0), (0.2, 0.5, 1.0)]),
    step_s=st.sampled_from([0.05, 0.5]),
    min_requests=st.sampled_from([1, 10]),
    watch_s=st.sampled_from([0.1, 1.0]),
    watch_pairs=st.sampled_from([1, 3]),
    guard=guards,
)

fickle = st.builds(
    Fickle,
    does=st.sampled_from(["none", "nan", "heavy", "ineligible", "raises", "sheds", "strange", "rangeless"]),
    every=st.sampled_from([2, 8, 100]),
    of=st.sampled_from([1, 30]),
)
_NAMES = ("consistent_hash", "expected_latency", "learned", "power_of_two", "random")
policies: st.SearchStrategy[Policy] = st.one_of(fickle, st.sampled_from([BUILTIN[name]() for name in _NAMES]))


@st.composite
def plans(draw: st.DrawFn, rollout: bool) -> CanaryPlan:
    """With a guard, or with a rollout and perhaps guards; sometimes with a shadow."""
    guarded = not rollout or draw(st.booleans())
    shadowed = draw(st.booleans())
    return CanaryPlan(
        guard=draw(guards) if guarded else None,
        baseline=draw(policies),
        shadow=draw(policies) if shadowed else None,
        shadow_share=draw(st.sampled_from([0.3, 1.0])) if shadowed else 0.0,
        rollout=draw(rollouts) if rollout else None,
        new=draw(policies) if rollout else None,
        guard_new=draw(guards) if rollout and draw(st.booleans()) else None,
    )
