"""The sections guard, shadow and rollout: what is refused and how that helps, and what the core is told."""

import pytest

from balancer.config import config
from balancer.config.config import ConfigError
from balancer.kernel.settings import GuardSettings, Margins, RolloutSettings
from balancer.scheduler.canary.selector import CanaryPlan
from policies import BUILTIN


def plan(content: str) -> CanaryPlan:
    parsed = config.parse(content, "balancer.yaml")
    return parsed.plan(parsed.policy.built)


def test_by_default_there_is_nothing_beside_a_policy_that_is_not_trained() -> None:
    assert not plan("{}\n")
    assert not plan("policy: {name: wlpr}\n")
    assert not plan("policy: {name: wlpr}\nguard: {enabled: false}\n")


def test_a_guard_may_be_wanted_for_any_policy_and_has_the_cores_defaults() -> None:
    wanted = plan("policy: {name: wlpr}\nguard: {enabled: true}\n")
    assert wanted
    assert wanted.guard == GuardSettings()
    assert wanted.baseline == BUILTIN["expected_latency"]()


def test_every_field_reaches_the_core() -> None:
    wanted = plan(
        "policy: {name: wlpr}\n"
        "telemetry: {stale_after_s: 3}\n"
        "guard: {enabled: true, baseline: {name: power_of_two, options: {choices: 3}}, quiet_s: 3, window_s: 1,"
        " window_every_s: 9, margins: {late: 0.1, tail: 0.2, errors: 0.3}}\n"
        "shadow: {name: peak_ewma, share: 0.5}\n"
        "rollout: {name: prequal, options: {pool: 4}, shares: [0.3, 0.6], step_s: 7}\n"
    )
    margins = Margins(0.1, 0.2, 0.3)
    guard = GuardSettings(
        report_age_s=1.5, quiet_s=3.0, window_s=1.0, settle_s=0.4, window_every_s=9.0, margins=margins
    )
    assert wanted == CanaryPlan(
        guard=guard,
        baseline=BUILTIN["power_of_two"](choices=3),  # type: ignore[call-arg]  # options of this one
        shadow=BUILTIN["peak_ewma"](),
        shadow_share=0.5,
        rollout=RolloutSettings((0.3, 0.6), 7.0, watch_s=42.0, guard=guard),
        new=BUILTIN["prequal"](pool=4),  # type: ignore[call-arg]  # options of this one
        guard_new=guard,
    )


@pytest.mark.parametrize("enabled", ["auto", "true", "false"])
def test_a_rollout_is_watched_in_windows_whatever_the_guard_says(enabled: str) -> None:
    wanted = plan(
        f"policy: {{name: random}}\nguard: {{enabled: {enabled}, window_s: 0, quiet_s: 3}}\nrollout: {{name: wlpr}}\n"
    )
    assert wanted.rollout == RolloutSettings(guard=GuardSettings(quiet_s=3.0))
    assert (wanted.guard_new is not None) is (enabled == "true")


@pytest.mark.parametrize("section", ["policy", "guard: {baseline", "shadow", "rollout"])
def test_a_name_alone_is_a_policy_wherever_there_is_one(section: str) -> None:
    end = "}\n" if "{" in section else "\n"
    short = config.parse(f"{section}: wlpr{end}", "balancer.yaml")
    assert short == config.parse(f"{section}: {{name: wlpr}}{end}", "balancer.yaml")
    assert "  name: wlpr\n" in config.effective_yaml(short)
    for wrong, words in (("wlp", 'did you mean "wlpr"?'), ("7", "must be a mapping of fields: name, options")):
        with pytest.raises(ConfigError) as caught:
            config.parse(f"# a comment\n{section}: {wrong}{end}", "balancer.yaml")
        where = "guard.baseline" if "{" in section else section
        assert str(caught.value).startswith(f"balancer.yaml:2: {where}")
        assert words in str(caught.value)
