"""What the recorder keeps of requests until it hears how they ended."""

from __future__ import annotations

from support.fleets import make_router

from balancer.core.settings import Settings
from balancer.gateway.addresses import Addresses
from balancer.gateway.kserve import Call, Kind
from balancer.gateway.picker import Picker
from balancer.operate.metrics import Metrics
from balancer.operate.recorder import Recorder
from policies.base import Request


def test_picks_whose_outcome_never_comes_are_let_go_with_time_alone() -> None:
    router = make_router(1, settings=Settings(outcome_timeout_s=10.0))
    now_s = 1.0
    picker = Picker(router, lambda: now_s)
    picker.addresses = Addresses()
    recorder = Recorder(router, picker, Metrics(router, lambda: now_s), lambda: now_s)
    for number in range(50):
        call = Call(Kind.MODEL, Request(model="m"), True, "", f"id-{number}", "")
        recorder.picked(call, picker.pick(call), 1e-5)
    recorder.tick(now_s + 9.0)
    assert recorder.awaited == 50
    recorder.tick(now_s + 10.0)
    assert recorder.awaited == 0
