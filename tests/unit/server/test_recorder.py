"""What the recorder keeps of requests until it hears how they ended."""

from support.fleets import make_router

from balancer.discovery.workers import WorkerSpec
from balancer.extproc.kserve import Call, Kind
from balancer.extproc.outcomes import UpstreamAnswer
from balancer.extproc.picker import Addresses, Picker
from balancer.kernel.settings import Settings
from balancer.server.metrics import Metrics
from balancer.server.recorder import Recorder
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


def test_a_pick_that_went_nowhere_keeps_no_place_whoever_reads() -> None:
    """Envoy did not wait for it: its worker is another's, and is done before the pick is heard of, or after it."""
    router = make_router(2)
    picker = Picker(router, lambda: 1.0)
    picker.addresses = Addresses(
        [WorkerSpec(name=f"w{at}", address="127.0.0.1", grpc_port=at + 1, http_port=at + 11) for at in range(2)]
    )
    recorder = Recorder(router, picker, Metrics(router, lambda: 1.0), lambda: 1.0)

    def pick(name: str) -> str:
        call = Call(Kind.INFERENCE, Request(model="m"), True, "", name, "")
        pick = picker.pick(call)
        recorder.picked(call, pick, 1e-5)
        assert pick.decision is not None
        return pick.decision.worker

    def done(name: str, port: int, http_status: int = 200) -> None:
        recorder.answered([UpstreamAnswer(name, "/ModelInfer", f"127.0.0.1:{port}", 0.01, http_status, 0)])

    for status in (200, 0):  # 0: its client stopped amid the request
        done(f"elsewhere {status}", 2 if pick(f"elsewhere {status}") == "w0" else 1, status)
    done("late", 1)
    pick("late")
    assert router.fleet.queue.in_flight.sum() == 0
    pick("there")
    assert router.fleet.queue.in_flight.sum() == 1
