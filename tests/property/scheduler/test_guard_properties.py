"""Whatever a guarded policy does, no request fails by it, one of both decides, and it returns when all is well."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.guarded import NO_WINDOWS, guarded

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.guard import Guard, Look
from balancer.scheduler.canary.selector import CanaryPlan
from balancer.scheduler.events import Finished
from policies.base import Request
from policies.least_requests import LeastRequests

SETTINGS = GuardSettings(window_every_s=1.0, quiet_s=2.0, max_quiet_s=8.0, report_age_s=5.0)
moods = st.sampled_from(["good", "good", "nan", "heavy", "ineligible", "raise"])
outside = st.sampled_from([0.0, 0.0, 9.0, float("nan"), float("inf")])
steps = st.lists(
    st.tuples(moods, outside, st.booleans(), st.floats(0.0, 1.0), st.sampled_from([0.0, 0.001, 0.1])), max_size=60
)


@settings(max_examples=examples(150), deadline=None)
@given(steps=steps, ok=st.lists(st.booleans(), min_size=60, max_size=60))
def test_no_request_fails_by_a_guarded_policy(
    steps: list[tuple[str, float, bool, float, float]], ok: list[bool]
) -> None:
    g = guarded(plan=CanaryPlan(guard=SETTINGS, baseline=LeastRequests(), shadow=LeastRequests(), shadow_share=0.5))
    mood = g.policy.mood
    for (mood.answer, mood.outside, mood.range_raises, gap_s, g.stopwatch.step_s), fine in zip(steps, ok, strict=False):
        g.now_s += gap_s
        decision = g.router.route(Request("m", deadline_s=0.1), g.now_s)
        assert decision.policy in {"moody", "least_requests"}
        assert 0 < decision.propensity <= 1
        g.router.observe(Finished(decision.number, decision.worker, 0.05, fine), g.now_s)
    assert g.router.selector is not None
    g.router.selector.explain(g.now_s)
    # All is well from now on, and the worst quiet period passes: it decides again.
    mood.answer, mood.outside, mood.range_raises, g.stopwatch.step_s = "good", 0.0, False, 0.0
    for guard in g.router.selector.guards().values():
        guard.settings = dataclasses.replace(guard.settings, report_age_s=1e9)
    assert "moody" in g.decide(140, 0.1)[-20:]


@settings(max_examples=examples(200), deadline=None)
@given(
    happens=st.lists(
        st.one_of(
            st.builds(Look, st.floats(0, 1), st.floats(0, 3), st.sampled_from(["", "", "bad"])),
            st.floats(0, 1),
            st.just("failed"),
        ),
        max_size=80,
    )
)
def test_falls_and_returns_alternate_and_the_state_says_which(happens: list[Look | float | str]) -> None:
    changes: list[bool] = []
    guard = Guard(
        dataclasses.replace(NO_WINDOWS, quiet_s=0.5, max_quiet_s=2.0), on_change=lambda c: changes.append(c.fell)
    )
    now_s = 0.0
    for one in happens:
        now_s += 0.1
        if isinstance(one, Look):
            guard.looked(one, now_s)
        elif isinstance(one, float):
            guard.took(one, now_s)
        else:
            guard.failed("bad", now_s)
        assert guard.state(now_s)["fallen_back"] is (guard.breach is not None)
    assert changes == [i % 2 == 0 for i in range(len(changes))]
    assert guard.falls == changes.count(True)
