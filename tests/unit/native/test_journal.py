"""What Envoys tell of their decisions makes the decision log that the router would have written, in every bit."""

import errno
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.settling import (
    SEED,
    SETTINGS,
    TAKEN,
    TURNED_AWAY,
    WORKERS,
    a_shared,
    begin,
    crossed,
    endpoints_of,
    expected,
    line_of,
    parts,
    printed_by,
    request_of,
    script,
)

from balancer.config.config import Config, from_mapping
from balancer.kernel.compiled.library import PATH, Compiled, Library
from balancer.kernel.settings import RolloutSettings
from balancer.native.journal import Journal
from balancer.native.layouts import JOURNAL_RING_BYTES as RING_BYTES
from balancer.native.router import SharedRouter
from balancer.native.state import JOURNAL
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event, Finished, FirstToken, Withdrawn, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from balancer.server.app import App
from balancer.server.decision_log.files import DecisionFiles
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog, RecordedDecision
from balancer.server.decision_log.recording import Recording
from balancer.server.native.recording import NativeRecording, recording_of
from policies import BUILTIN
from policies.base import Request
from simulator.replay import replay

NAMES = [f"w{number}" for number in range(WORKERS)]


class RecordingRouter(Router):
    """A router whose outcomes are recorded, as the gateway's listener does."""

    recording: Recording | None = None

    def observe(self, event: Event, now_s: float) -> None:
        if isinstance(event, FirstToken) and self.recording is not None and self._in_flight[event.number].prompt:
            self.recording.began(event.number, now_s)
        super().observe(event, now_s)
        if isinstance(event, Finished) and self.recording is not None:
            self.recording.ended(event, now_s)


@dataclass
class Recorded:
    """A router and its decision log."""

    router: Router
    files: DecisionFiles
    recording: Recording
    folder: Path

    def log(self) -> DecisionLog:
        self.router.observer = None
        self.recording.close()
        self.files.close(30.0)
        return read_log(self.folder)


def record(router: Router, folder: Path, share: float = 1.0) -> Recorded:
    files = DecisionFiles(folder, "0", 2**30, 100)
    recording = recording_of(router, files, process="0", seed=SEED, share=share, now_s=0.0, unix_s=0.0)
    router.observer = recording
    return Recorded(router, files, recording, folder)


def bits(decision: RecordedDecision) -> tuple[object, ...]:
    """All of it; numbers as they are in memory."""
    rest = decision.columns, decision.eligible, decision.probabilities
    who = decision.workers.names, decision.workers.weight.tobytes(), decision.workers.name_hash.tobytes()
    return (
        *(decision.request, decision.at_s, decision.subset, decision.policy, decision.valid, decision.pick),
        *(decision.propensity.hex(), decision.fallbacks, *who, *(array.tobytes() for array in rest)),
    )


def assert_same(found: DecisionLog, wanted: DecisionLog) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert bits(one) == bits(other)
    assert found.refusals == wanted.refusals
    assert repr(found.outcomes) == repr(wanted.outcomes)
    assert found.questions == wanted.questions


@pytest.mark.parametrize("prompts", [False, True])
@crossed(BUILTIN, "expected_latency", "limits")
def test_the_log_is_the_routers_own(settle: Path, tmp_path: Path, name: str, how: str, prompts: bool) -> None:
    shared = a_shared(tmp_path / "shared", BUILTIN[name](), SETTINGS[how])
    own = RecordingRouter(BUILTIN[name](), SETTINGS[how], SEED, Compiled(Library()))
    began_ns = time.monotonic_ns()
    for router in (shared, own):
        begin(router, began_ns * 1e-9)
    recorded, wanted = record(shared, tmp_path / "recorded"), record(own, tmp_path / "wanted")
    own.recording = wanted.recording
    assert shared.not_deciding_because == ""
    shared.serve(True)
    lines = list(script(own, began_ns + 60_000_000, prompts))
    decided = printed_by((settle, PATH, tmp_path / "shared"), [line for line, _ in lines])
    assert [parts(line) for line in decided] == [parts(line) for _, line in lines if line]
    found = recorded.log()
    assert any(each.request.prefix for each in found) == prompts
    assert any(each.output_tokens and each.first_s < each.said_s for each in found.outcomes.values()) == prompts
    assert_same(found, wanted.log())


class Both:
    """A shared router and one of its own, to which the same happens; both recorded."""

    def __init__(self, settle: Path, tmp_path: Path, name: str = "expected_latency", share: float = 1.0) -> None:
        self.settle, self.folder, self.number = settle, tmp_path / "shared", 0
        self.shared = a_shared(self.folder, BUILTIN[name](), SETTINGS["limits"])
        self.own = RecordingRouter(BUILTIN[name](), SETTINGS["limits"], SEED, Compiled(Library()))
        self.at_ns = time.monotonic_ns()
        for router in (self.shared, self.own):
            begin(router, self.at_ns * 1e-9)
        self.recorded = record(self.shared, tmp_path / "recorded", share)
        self.wanted = record(self.own, tmp_path / "wanted", share)
        self.shared.serve(True)

    def envoy(self, count: int) -> None:
        """Decisions that Envoy makes, as the router would."""
        lines, wanted = [], []
        for _ in range(count):
            request, grpc = self._next()
            lines.append(line_of(request, grpc, self.at_ns))
            wanted.append(parts(expected(self.own, request, grpc, self.at_ns * 1e-9)[0]))
        assert [parts(line) for line in printed_by((self.settle, PATH, self.folder), lines)] == wanted

    def here(self, count: int) -> None:
        """Decisions that the balancer is asked for, and what becomes of them."""
        for _ in range(count):
            request, _ = self._next()
            for each in (self.recorded, self.wanted):
                try:
                    decision = each.router.route(request, self.at_ns * 1e-9)
                except RoutingError:
                    continue
                each.recording.no_inference(decision.number)
                each.recording.ended(Withdrawn(decision.number), self.at_ns * 1e-9)

    def happens(self, event: Event) -> None:
        self.at_ns += 1_000_000
        for router in (self.shared, self.own):
            router.observe(event, self.at_ns * 1e-9)

    def _next(self) -> tuple[Request, bool]:
        self.at_ns += 1_000_000
        self.number += 1
        return request_of(self.number)

    @property
    def journal(self) -> Journal:
        assert self.shared.journal is not None
        return self.shared.journal


def test_what_is_decided_on_either_side_is_in_one_order_and_of_its_own_workers(settle: Path, tmp_path: Path) -> None:
    both = Both(settle, tmp_path)
    both.here(3)
    both.envoy(30)
    both.here(5)
    both.happens(WorkerRemoved("w3"))
    both.envoy(30)
    both.here(5)
    both.happens(WorkerAdded("new", weight=2.0))
    both.here(5)
    # Another block: there were no more than 32 workers so far.
    for number in range(WORKERS, 40):
        both.happens(WorkerAdded(f"w{number}"))
    both.envoy(30)
    log = both.recorded.log()
    assert_same(log, both.wanted.log())
    numbers = [decision.request.number for decision in log]
    assert numbers == sorted(numbers)
    assert {len(decision.workers.names) for decision in log} == {20, 21, 40}
    assert replay(log).exact


def test_who_decided_has_its_role(settle: Path, tmp_path: Path) -> None:
    both = Both(settle, tmp_path, "round_robin")
    plan = CanaryPlan(rollout=RolloutSettings(shares=(0.5, 1.0)), new=BUILTIN["wlpr"]())
    for router in (both.shared, both.own):
        router.configure(router.policy, router.settings, PolicySelector(router.policy, plan))
    both.here(10)
    both.envoy(60)
    both.here(10)
    log = both.recorded.log()
    assert_same(log, both.wanted.log())
    assert {(decision.policy.name, decision.policy.role) for decision in log} == {
        ("round_robin", "in_force"),
        ("wlpr", "rollout"),
        ("consistent_hash", "hash"),
    }


def test_a_share_is_recorded(settle: Path, tmp_path: Path) -> None:
    both = Both(settle, tmp_path, share=0.3)
    both.envoy(100)
    log = both.recorded.log()
    assert_same(log, both.wanted.log())
    assert 10 < len(log) < 60


def test_while_requests_flow_it_may_begin_and_end(settle: Path, tmp_path: Path) -> None:
    both = Both(settle, tmp_path)
    both.envoy(20)
    both.shared.observer = None
    both.recorded.recording.close()
    assert not (both.folder / JOURNAL).exists()
    both.envoy(20)
    again = record(both.shared, tmp_path / "again")
    both.envoy(20)
    numbers = {int(decision.request.number) for log in (both.recorded.log(), again.log()) for decision in log}
    assert {number // 20 for number in numbers} == {0, 2}


def test_records_never_go_over_the_end_of_the_ring(settle: Path, tmp_path: Path) -> None:
    both = Both(settle, tmp_path)
    at = both.journal.read = 5 * RING_BYTES - 10_000
    both.journal._call("init", 1.0, at)
    both.envoy(30)
    assert both.journal.written > 5 * RING_BYTES
    recording = both.recorded.recording
    assert isinstance(recording, NativeRecording)
    while recording.drain(most_bytes=64):
        pass
    assert_same(both.recorded.log(), both.wanted.log())


def test_what_finds_no_room_is_dropped_and_counted(settle: Path, tmp_path: Path) -> None:
    both = Both(settle, tmp_path)
    both.journal._call("done", 2**64 - RING_BYTES + 20_000)
    both.envoy(60)
    counted: list[int] = []
    both.recorded.files.lost = counted.append  # type: ignore[method-assign]
    log, wanted = both.recorded.log(), both.wanted.log()
    assert 0 < len(log) < 10
    for one, other in zip(log, wanted, strict=False):
        assert bits(one) == bits(other)
    assert sum(counted) == len(wanted) + len(wanted.refusals) - len(log) - len(log.refusals)


def test_another_state_takes_over_what_was_not_read_yet(settle: Path, tmp_path: Path) -> None:
    both = Both(settle, tmp_path)
    both.envoy(30)
    assert both.shared.state.lock()
    both.happens(WorkerRemoved("w0"))
    assert both.shared.replaced == 1
    both.shared.serve(True)
    found = both.recorded.log()
    for one, other in zip(found, both.wanted.log(), strict=True):
        assert bits(one) == bits(other)


@pytest.mark.parametrize("seed", range(4))
def test_a_journal_torn_by_hand_costs_what_was_in_it(settle: Path, tmp_path: Path, seed: int) -> None:
    both, dice = Both(settle, tmp_path), random.Random(seed)
    both.envoy(20)
    with (both.folder / JOURNAL).open("r+b") as file:
        for _ in range(dice.choice((1, 8, 64))):
            file.seek(8 * dice.randrange(dice.choice((32, 400, 8000))))
            file.write(dice.choice((dice.randbytes(8), bytes(8), b"\xff" * 8)))
    recording = both.recorded.recording
    assert isinstance(recording, NativeRecording)
    both.envoy(20)
    while recording.drain():
        pass
    if both.shared.not_deciding_because == "":
        both.envoy(20)
    assert len(both.recorded.log()) <= 60


def test_without_room_for_a_journal_envoys_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = a_shared(tmp_path / "shared", BUILTIN["wlpr"](), SETTINGS["limits"])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("balancer.native.journal.in_file", full)
        recorded = record(shared, tmp_path / "recorded")
    assert "no room" in shared.not_deciding_because
    begin(shared, time.monotonic())
    shared.route(Request("a"), time.monotonic())
    assert len(recorded.log()) == 1
    assert shared.not_deciding_because == ""


def test_a_config_begins_and_ends_it(settle: Path, tmp_path: Path) -> None:
    envoy = {"frontend": "native", "shared_folder": str(tmp_path / "shared")}

    def config(policy: str, **sections: object) -> Config:
        return from_mapping({"policy": {"name": policy}, "envoy": envoy, **sections})

    app = App(config("wlpr"), None)
    shared = app.router
    assert isinstance(shared, SharedRouter)
    at_ns = time.monotonic_ns()
    begin(shared, at_ns * 1e-9)
    shared.list_endpoints(endpoints_of(NAMES))
    log = {"decision_log": {"folder": str(tmp_path / "decisions")}}
    for number, wanted in enumerate([config("wlpr"), config("wlpr", **log), config("prequal", **log), config("wlpr")]):
        files = app._decision_log.files
        app._apply(wanted)
        assert shared.not_deciding_because == ""
        shared.serve(True)
        lines = [line_of(*request_of(k), at_ns + 10_000_000 * number + 100_000 * k) for k in range(20)]
        decided = printed_by((settle, PATH, tmp_path / "shared"), lines)
        assert all(line.split(" ")[0] in {str(TAKEN), str(TURNED_AWAY)} for line in decided)
    assert files is not None
    files.close(30.0)
    found = read_log(tmp_path / "decisions")
    numbers = [int(each.request.number) for each in (*found.decisions, *found.refusals)]
    assert sorted(numbers) == list(range(20, 60))
    assert {each.policy.name for each in found} == {"wlpr", "prequal", "consistent_hash"}
