"""Decision logs of routers to which everything happens that may happen to one, at random."""

from pathlib import Path

import numpy as np

from balancer.kernel.python_kernel import Kernel
from balancer.kernel.settings import Limits, Settings
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Finished, ModelReport, Report, ReportsLost, Withdrawn, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from balancer.server.decision_log.files import DecisionFiles
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog
from balancer.server.decision_log.recording import Recording
from dev.reference.logs import UNIX_S
from policies.base import Policy, Request

MODELS = ("bert", "tft")
LIMITS = Settings(limits=Limits(max_pending_per_worker=6, sheddable_priority=2, sheddable_max_pending_per_worker=3))


def write(
    folder: Path, router: Router, *, seed: int = 0, share: float = 1.0, process: str = "0", **sizes: int
) -> tuple[DecisionFiles, Recording]:
    """Have the router recorded there; `close(wait_s=...)` the files when done."""
    files = DecisionFiles(folder, process, sizes.get("max_file_bytes", 2**30), sizes.get("max_files", 100))
    recording = Recording(router, files, process=process, seed=seed, share=share, now_s=0.0, unix_s=UNIX_S)
    router.observer = recording
    return files, recording


def recorded(
    folder: Path,
    policy: Policy,
    requests: int = 400,
    seed: int = 0,
    settings: Settings | None = None,
    kernel: Kernel | None = None,
) -> DecisionLog:
    """The log of a router under that policy with random requests, reports, outcomes, and workers that come and go."""
    router = Router(policy, settings, seed, kernel)
    files, recording = write(folder, router, seed=seed)
    history(router, recording, np.random.default_rng(seed), requests)
    files.close(wait_s=30)
    return read_log(folder)


def history(router: Router, recording: Recording, rng: np.random.Generator, requests: int) -> None:
    """Let it all happen: about as many other events as requests."""
    now_s = 0.0
    unfinished: list[tuple[int, str, float]] = []
    for worker in range(5):
        router.observe(WorkerAdded(f"w{worker}", float(rng.uniform(0.5, 2)), f"gpu-{worker % 2}"), now_s)
        router.observe(_report(f"w{worker}", 0, rng), now_s)
    for step in range(1, requests + 1):
        now_s += float(rng.exponential(0.01))
        router.tick(now_s)
        try:
            decision = router.route(_request(rng), now_s, _subset(rng))
            unfinished.append((decision.number, decision.worker, now_s))
        except RoutingError:
            pass
        if unfinished and rng.random() < 0.9:
            sent, worker, sent_s = unfinished.pop(int(rng.integers(len(unfinished))))
            gone = rng.random() < 0.05
            event = Withdrawn(sent) if gone else Finished(sent, worker, now_s - sent_s, bool(rng.random() < 0.95))
            router.observe(event, now_s)
            recording.ended(event, now_s)
        router.observe(_report(f"w{rng.integers(8)}", step, rng), now_s)
        if step % 40 == 0:
            _change(router, rng, now_s)


def _change(router: Router, rng: np.random.Generator, now_s: float) -> None:
    worker = f"w{rng.integers(8)}"
    match int(rng.integers(4)):
        case 0:
            router.observe(WorkerRemoved(worker), now_s)
        case 1:
            router.observe(ReportsLost(worker), now_s)
        case _:
            draining = bool(rng.random() < 0.2)
            router.observe(WorkerAdded(worker, float(rng.uniform(0.5, 2)), draining=draining), now_s)


def _request(rng: np.random.Generator) -> Request:
    keyed, sequence = rng.random() < 0.3, rng.random() < 0.1
    return Request(
        model=str(rng.choice([*MODELS, "unknown"], p=[0.6, 0.38, 0.02])),
        rows=float(rng.integers(1, 9)),
        key=int(rng.integers(0, 2**64, dtype=np.uint64)) if keyed or sequence else None,
        deadline_s=float(rng.choice([0.05, np.inf])),
        priority=int(rng.integers(0, 4)),
        tenant=str(rng.choice(["", "a", "b"])),
        sequence=bool(sequence),
    )


def _subset(rng: np.random.Generator) -> list[str] | None:
    return [f"w{worker}" for worker in rng.choice(8, 4, replace=False)] if rng.random() < 0.1 else None


def _report(worker: str, number: int, rng: np.random.Generator) -> Report:
    def model(name: str) -> ModelReport:
        executions = 4 + number
        batches = ((1, executions, executions * 0.01), (4, executions, executions * 0.017 * float(rng.uniform(1, 2))))
        pending, executing = float(rng.integers(0, 6)), float(rng.uniform(0, 2))
        return ModelReport(name, "1", True, pending, executing, max_batch_rows=4, instances=1, batches=batches)

    return Report(worker, 1, number, True, tuple(map(model, MODELS)), balancers=int(rng.integers(1, 3)))
