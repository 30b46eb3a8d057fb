"""What Envoys tell of their decisions makes the decision log that the router would have written, in every bit."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.settling import SEED, SETTINGS, WORKERS, begin, endpoint, parts, script

from balancer.core.events import Event, Finished, WorkerAdded, WorkerRemoved
from balancer.core.router import Router
from balancer.core.settings import Settings
from balancer.front.folder import JOURNAL, Folder
from balancer.front.journal import RING_BYTES, Journal
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.library import PATH, Compiled, Library
from balancer.operate.decision_log.files import DecisionFiles
from balancer.operate.decision_log.reading import read_log
from balancer.operate.decision_log.recorded import DecisionLog, RecordedDecision
from balancer.operate.decision_log.recording import Recording
from balancer.operate.native_recording import NativeRecording, recording_of
from policies import BUILTIN
from policies.base import Policy, Request
from simulator.replay import replay

NAMES = [f"w{number}" for number in range(WORKERS)]


class Heard(Router):
    """A router whose outcomes are recorded, as the gateway's listener does."""

    recording: Recording | None = None

    def observe(self, event: Event, now_s: float) -> None:
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
        self.router.witness = None
        self.recording.close()
        self.files.close(30.0)
        return read_log(self.folder)


def record(router: Router, folder: Path, share: float = 1.0) -> Recorded:
    files = DecisionFiles(folder, "0", 2**30, 100)
    recording = recording_of(router, files, process="0", seed=SEED, share=share, now_s=0.0, unix_s=0.0)
    router.witness = recording
    return Recorded(router, files, recording, folder)


def a_shared(path: Path, policy: Policy, settings: Settings) -> SharedRouter:
    library = Library()
    router = SharedRouter(policy, settings, SEED, library, Module(library), Folder(path))
    router.tell({n: endpoint(n, True) for n in NAMES}, {n: endpoint(n, False) for n in NAMES})
    return router


def run(settle: Path, folder: Path, lines: list[str]) -> list[str]:
    done = subprocess.run([settle, PATH, folder], input="\n".join(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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


@pytest.mark.parametrize("name", sorted(BUILTIN))
@pytest.mark.parametrize("how", SETTINGS)
def test_the_log_is_the_routers_own(settle: Path, tmp_path: Path, name: str, how: str) -> None:
    shared = a_shared(tmp_path / "shared", BUILTIN[name](), SETTINGS[how])
    own = Heard(BUILTIN[name](), SETTINGS[how], SEED, Compiled(Library()))
    began_ns = time.monotonic_ns()
    for router in (shared, own):
        begin(router, began_ns * 1e-9)
    told, wanted = record(shared, tmp_path / "told"), record(own, tmp_path / "wanted")
    own.recording = wanted.recording
    assert shared.asked_because == ""
    shared.serve(True)
    lines = list(script(own, began_ns + 60_000_000))
    decided = run(settle, tmp_path / "shared", [line for line, _ in lines])
    assert [parts(line) for line in decided] == [parts(line) for _, line in lines if line]
    log = told.log()
    assert_same(log, wanted.log())
    assert replay(log).exact
    assert not (tmp_path / "shared" / JOURNAL).exists()
