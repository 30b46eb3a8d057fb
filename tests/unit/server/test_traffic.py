"""When requests flow, what follows them then, and that decisions do not depend on reports that say nothing new."""

import asyncio
from collections.abc import Iterator

import pytest
from support.fleets import model, report
from support.waiting import eventually

from balancer.kernel.settings import GuardSettings, Settings
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.events import Finished, WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.internal_errors import InternalErrors
from balancer.server.metrics.series import Counters
from balancer.server.tally import QUIET_AFTER_S, Traffic, quiet_pause_s
from policies import BUILTIN
from policies.base import Request
from policies.least_requests import LeastRequests


class Rig:
    def __init__(self, settings: Settings | None = None) -> None:
        self.now_s, self.ready = 100.0, True
        self.router = Router(LeastRequests(), settings)
        self.router.observe(WorkerAdded("w"), self.now_s)
        self.router.observe(report("w", 0, [model()]), self.now_s)
        self.traffic = Traffic(self.router, lambda: self.now_s, lambda: self.ready)

    def later(self, seconds: float = QUIET_AFTER_S) -> bool:
        self.now_s += seconds
        return self.traffic.flows()


def test_requests_flow_from_the_first_until_a_while_after_the_last_has_ended() -> None:
    rig = Rig()
    assert rig.traffic.flows()
    assert not rig.later()
    decision = rig.router.route(Request("m"), rig.now_s)
    assert rig.traffic.flows()
    assert rig.later(), "it is in flight"
    rig.router.observe(Finished(decision.number, "w", 0.1, ok=True), rig.now_s)
    assert rig.later(0.5 * QUIET_AFTER_S)
    assert not rig.later()


def test_a_request_that_came_and_ended_between_two_looks_is_seen() -> None:
    rig = Rig()
    rig.traffic.flows()
    assert not rig.later()
    decision = rig.router.route(Request("m"), rig.now_s)
    rig.router.observe(Finished(decision.number, "w", 0.001, ok=True), rig.now_s)
    assert rig.traffic.flows()


def test_until_it_is_ready_all_is_done_at_full_rate() -> None:
    rig = Rig()
    rig.ready = False
    rig.traffic.flows()
    assert rig.later()
    assert rig.traffic.report_pause_s() == 0.0


def test_rare_reports_are_never_old_reports() -> None:
    selector = PolicySelector(
        LeastRequests(), CanaryPlan(guard=GuardSettings(report_age_s=0.2), baseline=LeastRequests()), 0
    )
    assert quiet_pause_s(Settings(), None) == pytest.approx(1 / 3)
    assert quiet_pause_s(Settings(stale_after_s=0.3), None) == pytest.approx(0.1)
    assert quiet_pause_s(Settings(stale_after_s=60.0), None) == 0.5
    assert quiet_pause_s(Settings(), selector) == pytest.approx(0.1)


async def test_the_first_request_is_announced_and_workers_that_change_are_looked_at() -> None:
    rig = Rig()
    ticks, began, stop = [0], asyncio.Event(), asyncio.Event()
    internal_errors = InternalErrors(Counters("internal_errors", "", "handler"), lambda: rig.now_s)

    async def tick(_now_s: float) -> None:
        ticks[0] += 1

    async def begin() -> None:
        began.set()

    following = asyncio.create_task(rig.traffic.follow(stop, tick, begin, internal_errors))
    await eventually(lambda: ticks[0] == 1)
    rig.now_s += 1.5 * QUIET_AFTER_S
    await eventually(lambda: ticks[0] == 2)
    assert not began.is_set()
    # Time stands still, so only what happens is followed.
    rig.router.observe(WorkerAdded("other"), rig.now_s)
    await eventually(lambda: ticks[0] == 3)
    rig.traffic.tick_soon()
    await eventually(lambda: ticks[0] == 4)
    assert rig.traffic.noticing(lambda: True)()
    await began.wait()
    stop.set()
    await following


@pytest.mark.parametrize("policy", ["expected_latency", "least_requests", "wlpr", "prequal"])
def test_decisions_are_the_same_where_reports_of_an_idle_fleet_come_rarely(policy: str) -> None:
    def decisions(keep: int) -> Iterator[tuple[str, float]]:
        router = Router(BUILTIN[policy](), Settings(), seed=1)
        for name in ("a", "b", "c"):
            router.observe(WorkerAdded(name), 0.0)
        ended = 0
        for number in range(500):
            now_s = number / 50
            idle = number < 250
            for name in ("a", "b", "c"):
                # The last idle report is the one that a balancer that wakes asks for.
                if not idle or number % keep == 0 or number == 249:
                    router.observe(report(name, number, [model(succeeded=ended)]), now_s)
            if idle:
                continue
            decision = router.route(Request("m"), now_s + 0.001)
            yield decision.worker, decision.propensity
            router.observe(Finished(decision.number, decision.worker, 0.01, ok=True), now_s + 0.011)
            ended += 1

    assert list(decisions(keep=16)) == list(decisions(keep=1))
