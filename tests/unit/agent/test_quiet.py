"""When an agent looks rarely, and what ends that."""

import asyncio

from balancer.agent.quiet import QUIET_AFTER_S, Pace
from balancer.agent.server_state import ServerState
from balancer.agent.triton_source import ExecutingEstimate
from balancer.scheduler.events import ModelReport

ALLOWED_S = 0.3


def triton(*, ready: bool = True, **model: float) -> ServerState:
    return ServerState(ready, 1, (ModelReport("m", "1", ready=True, **model),))  # type: ignore[arg-type]


def test_an_agent_looks_rarely_once_nothing_happened_for_a_while_and_all_balancers_allow_it() -> None:
    pace = Pace()
    assert pace.observe(triton(succeeded=3), ALLOWED_S, 0.0) == 0.0
    assert pace.observe(triton(succeeded=3), ALLOWED_S, 0.9 * QUIET_AFTER_S) == 0.0
    assert pace.observe(triton(succeeded=3), ALLOWED_S, QUIET_AFTER_S) == ALLOWED_S
    assert pace.observe(triton(succeeded=3), 0.0, QUIET_AFTER_S) == 0.0


def test_what_happens_at_triton_ends_the_quiet_whoever_sent_it() -> None:
    for busy in (triton(pending=1), triton(executing=0.5), triton(succeeded=1), triton(failed=1), triton(ready=False)):
        pace = Pace()
        pace.observe(triton(), ALLOWED_S, 0.0)
        assert pace.observe(triton(), ALLOWED_S, 10.0) == ALLOWED_S
        assert pace.observe(busy, ALLOWED_S, 10.0) == 0.0


async def test_who_pauses_goes_on_when_something_happens() -> None:
    pace = Pace()
    pace.observe(triton(), 3600.0, 0.0)
    pace.observe(triton(), 3600.0, 10.0)
    pausing = asyncio.create_task(pace.pause(0.0))
    await asyncio.sleep(0)
    assert not pausing.done()
    pace.wake()
    await pausing


def test_what_executes_is_the_same_number_after_rare_looks_as_after_many() -> None:
    """Nothing for two seconds, then two requests at a time."""
    often, rarely = ExecutingEstimate(), ExecutingEstimate()
    for tick in range(100):
        often.observe(tick / 50, 0.0, 0, at_most=8)
        if tick % 16 == 0:
            rarely.observe(tick / 50, 0.0, 0, at_most=8)
    for tick in range(100, 115):
        ended = max(tick - 101, 0)
        seen = [each.observe(tick / 50, ended * 40e3, ended, at_most=8) for each in (often, rarely)]
        assert abs(seen[0] - seen[1]) <= 0.1 * max(seen[0], 1.0)
