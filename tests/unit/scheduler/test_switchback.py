"""The comparison in pairs of windows: rarely wrong about equal arms, and soon right about unequal ones."""

import heapq
import math

import numpy as np
import pytest

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.evidence import Evidence
from balancer.scheduler.canary.switchback import Arm, Finding, Switchback

SETTINGS = GuardSettings()


def compare(
    seed: int,
    settings: GuardSettings = SETTINGS,
    slower: float = 1.0,
    failing: float = 0.0,
    duration_s: float = 1000.0,
) -> tuple[float, Finding | None, int]:
    """When the policy is found worse, why, and how many windows of the baseline there were.

    60 requests a second with heavy-tailed latencies that depend on those before (a load that comes and goes within
    seconds); the policy's are `slower` by a factor, and a share `failing` of them fail. A deadline of 100 ms.
    """
    generator = np.random.default_rng(seed)
    switchback = Switchback(settings, seed)
    now_s, load, windows = 0.0, 0.0, 0
    ends: list[tuple[float, int, object, float, bool]] = []
    count = int(duration_s * 60)
    gaps_s, normal = generator.exponential(1 / 60, count), generator.normal(size=count)
    service, fails = generator.exponential(1.0, count), generator.random(count) < failing
    before = Arm.POLICY
    for i in range(count):
        now_s += gaps_s[i]
        keep = math.exp(-gaps_s[i])
        load = keep * load + math.sqrt(1 - keep**2) * normal[i]
        while ends and ends[0][0] <= now_s:
            end_s, _, ticket, latency_s, ok = heapq.heappop(ends)
            ticket.ended(latency_s, ok, end_s)  # type: ignore[attr-defined]  # a ticket
        arm = switchback.arm(now_s)
        windows += arm is Arm.BASELINE and before is Arm.POLICY
        before = arm
        if switchback.finding is not None:
            return now_s, switchback.finding, windows
        ticket = switchback.ticket("m", 0.1, now_s)
        if ticket is not None:
            policy = arm is Arm.POLICY
            latency_s = 0.03 * math.exp(load) * (0.5 + service[i]) * (slower if policy else 1.0)
            heapq.heappush(ends, (now_s + latency_s, i, ticket, latency_s, not (policy and fails[i])))
    return math.inf, None, windows


def test_equal_arms_are_called_unequal_no_more_often_than_promised() -> None:
    """At a promise of one false alarm in 20 pairs and more, so that there are some to count."""
    settings = GuardSettings(false_alarm_pairs=20.0)
    alarms, pairs = 0, 0
    for seed in range(12):
        found_s, _, windows = compare(seed, settings, duration_s=600.0)
        alarms += math.isfinite(found_s)
        pairs += windows
    assert pairs > 300
    assert alarms / pairs <= 1 / 20


def test_with_the_default_promise_equal_arms_are_left_alone() -> None:
    assert [compare(seed, duration_s=1500.0)[1] for seed in range(6)] == [None] * 6


@pytest.mark.parametrize(
    ("slower", "failing", "within_s", "reasons"),
    [(4.0, 0.0, 120.0, {"late", "tail"}), (2.0, 0.0, 400.0, {"late", "tail"}), (1.0, 0.3, 120.0, {"errors"})],
)
def test_a_worse_policy_is_found(slower: float, failing: float, within_s: float, reasons: set[str]) -> None:
    for seed in range(5):
        found_s, finding, _ = compare(seed, slower=slower, failing=failing)
        assert found_s < within_s
        assert finding is not None
        assert finding.reason in reasons


def test_a_better_policy_is_left_alone() -> None:
    assert [compare(seed, slower=0.5)[1] for seed in range(4)] == [None] * 4


def test_the_words_say_how_much_worse() -> None:
    _, finding, _ = compare(0, failing=1.0)
    assert finding is not None
    assert finding.words.startswith("100.0% of its requests failed, of the baseline's 0.0%, in ")


def windows(settings: GuardSettings, every_s: float = 0.001, duration_s: float = 300.0) -> list[tuple[float, float]]:
    """Beginning and end of each window of the baseline, as requests at that distance meet them."""
    switchback, found = Switchback(settings, seed=3), []
    begun_s = math.nan
    for i in range(int(duration_s / every_s)):
        now_s = i * every_s
        arm = switchback.arm(now_s)
        if arm is Arm.BASELINE and math.isnan(begun_s):
            begun_s = now_s
        if arm is Arm.POLICY and not math.isnan(begun_s):
            found.append((begun_s, now_s))
            begun_s = math.nan
    return found


def test_windows_have_their_length_come_as_often_as_set_and_keep_no_time() -> None:
    found = windows(SETTINGS)
    lengths_s = np.array([end - begin for begin, end in found])
    starts_s = np.array([begin for begin, _ in found])
    assert np.abs(lengths_s - 0.25).max() < 0.005
    assert np.diff(starts_s).mean() == pytest.approx(5.0, rel=0.1)
    assert np.diff(starts_s).std() > 1.0


def test_the_beginning_of_each_window_is_left_out() -> None:
    switchback = Switchback(SETTINGS, seed=3)
    measured: dict[Arm, float] = dict.fromkeys(Arm, 0.0)
    for i in range(300_000):
        now_s = i * 0.001
        arm = switchback.arm(now_s)
        measured[arm] += 0.001 * (switchback.ticket("m", math.inf, now_s) is not None)
    pairs = len(windows(SETTINGS))
    for arm in Arm:
        assert measured[arm] == pytest.approx(pairs * 0.15, rel=0.03)


def test_no_windows_where_none_are_wanted_and_none_are_compared_where_requests_are_few() -> None:
    assert windows(GuardSettings(window_s=0.0)) == []
    switchback = Switchback(SETTINGS)
    for i in range(2000):
        switchback.arm(i * 2.0)
        ticket = switchback.ticket("m", 0.1, i * 2.0)
        if ticket is not None:
            ticket.ended(5.0, False, i * 2.0 + 0.1)
    assert switchback.finding is None


def test_a_window_in_which_requests_stop_is_thrown_away() -> None:
    switchback, now_s = Switchback(SETTINGS, seed=3), 0.0
    for _ in range(20):
        while switchback.arm(now_s) is Arm.POLICY:
            now_s += 0.01
        now_s += 10.0
        for _ in range(20):
            assert switchback.arm(now_s) is Arm.POLICY
            assert switchback.ticket("m", 0.1, now_s) is None
            now_s += 0.01


def test_requests_without_an_end_are_slow_and_late() -> None:
    """A policy that sends to a worker that hangs gets no outcomes at all."""
    switchback = Switchback(SETTINGS)
    now_s = 0.0
    while switchback.finding is None and now_s < 300:
        now_s += 0.01
        arm = switchback.arm(now_s)
        ticket = switchback.ticket("m", 0.5, now_s)
        if ticket is not None and arm is Arm.BASELINE:
            ticket.ended(0.02, True, now_s + 0.02)
    assert switchback.finding is not None
    assert switchback.finding.reason in {"late", "tail"}


def test_evidence_begins_anew_where_it_has_lost_and_adds_up_where_it_wins() -> None:
    evidence = Evidence(limit=8.0)
    for _ in range(5):
        evidence.bet(-0.5)
        assert not evidence.close()
    assert evidence.sum == 0.5
    found = []
    for _ in range(3):
        evidence.bet(1.0)
        found.append(evidence.close())
    assert found == [False, False, True]


def test_the_evidence_of_fair_bets_has_the_promised_mean_time_between_false_alarms() -> None:
    generator = np.random.default_rng(0)
    evidence, observations, alarms = Evidence(limit=50.0), 100_000, 0
    for x in generator.choice([-0.6, 0.6], observations):
        evidence.bet(float(x))
        if evidence.close():
            alarms += 1
            evidence.reset()
    assert alarms > 100
    assert observations / alarms >= 50
