"""The loop around PGPE: iterate, evaluate, keep the best, write checkpoints, know when to stop.

Nothing that the weights depend on is read from the clock, the machine or the pool, so a run that was killed and resumed
ends with the weights of one that was not.
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.summary import Writer

from policies.base import FloatArray
from policies.learned.network import Network
from simulator.train.plan import ResolvedPlan
from simulator.train.pool import TaskPool
from simulator.train.validation import NetworkVerdict, Validation

OUT_OF_TIME = "the time is over"
FILE = "checkpoint.npz"


@dataclass(slots=True)
class Checkpoint:
    """The state of a run between two iterations: all that it needs to go on as if it had never stopped."""

    algorithm: dict[str, FloatArray]
    best: Network
    last: Network
    best_iteration: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    wall_s: float = 0.0

    def write(self, folder: Path) -> None:
        summary = {"best_iteration": self.best_iteration, "curve": self.curve, "wall_s": self.wall_s}
        arrays: dict[str, Any] = {f"algorithm/{name}": array for name, array in self.algorithm.items()}
        for which, network in (("best", self.best), ("last", self.last)):
            arrays |= {f"{which}/{name}": array for name, array in network._asdict().items()}
        content = io.BytesIO()
        np.savez(content, summary=np.frombuffer(json.dumps(summary).encode(), np.uint8), **arrays)
        write_whole(folder / FILE, content.getvalue())


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The one in the folder; None where there is none.

    Raises:
        ValueError: it is damaged, which only happens to it from outside.
    """
    path = folder / FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        summary = json.loads(arrays.pop("summary").tobytes())
        parts: dict[str, dict[str, Any]] = {"algorithm": {}, "best": {}, "last": {}}
        for name, array in arrays.items():
            part, _, inner = name.partition("/")
            parts[part][inner] = array
        return Checkpoint(parts["algorithm"], Network(**parts["best"]), Network(**parts["last"]), **summary)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); begin anew in another folder") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that, whatever is killed when, it has the old content or the new."""
    beside = path.with_name(f"{path.name}.part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    iteration: int
    wall_s: float
    judged: NetworkVerdict | None
    """Where it was evaluated."""
    best: bool


@dataclass(frozen=True, slots=True)
class Trained:
    checkpoint: Checkpoint
    why: str
    """It ended; in words."""


def train(
    course: ResolvedPlan,
    folder: Path,
    pool: TaskPool,
    *,
    found: Checkpoint | None = None,
    limit_s: float = np.inf,
    on_step: Callable[[TrainingStep], None] = lambda step: None,
) -> Trained:
    """Run to the end.

    Args:
        course: What to do.
        folder: For checkpoints and TensorBoard.
        pool: Where episodes are played.
        found: The checkpoint to go on from; None: begin.
        limit_s: Begin no iteration after so long, all parts of the run counted.
        on_step: Called after each iteration.
    """
    algorithm = course.algorithm
    settings = algorithm.settings
    if found is not None:
        algorithm.restore(found.algorithm)
    kept = found or Checkpoint(algorithm.state(), best=algorithm.network, last=algorithm.network)
    validation = Validation(course.validation, settings.episode_requests, settings.random_share, pool)
    begun_s = time.monotonic() - kept.wall_s
    with closing(Writer(str(folder / "tensorboard"))) as writer:

        def plot(part: str, numbers: dict[str, float]) -> None:
            for name, number in numbers.items():
                writer.add_scalar(f"{part}/{name}", number, algorithm.iteration)
            writer.flush()

        while True:
            why = ""
            if algorithm.iteration >= settings.iterations:
                why = "all iterations are done"
            elif kept.wall_s >= limit_s:
                why = OUT_OF_TIME
            judged = None
            known = bool(kept.curve) and kept.curve[-1]["iteration"] == algorithm.iteration  # from the checkpoint
            if not known and (why or algorithm.iteration % settings.evaluate_every == 0):
                judged = validation.judge(algorithm.network, pool)
                best = min((each["cost"] for each in kept.curve if np.isfinite(each["cost"])), default=np.inf)
                if judged.cost < best:
                    kept.best, kept.best_iteration = algorithm.network, algorithm.iteration
                kept.curve.append({"iteration": algorithm.iteration, **judged._asdict()})
                plot("validation", judged._asdict())
            since = sum(each["iteration"] > kept.best_iteration for each in kept.curve)
            if not why and since >= settings.patience:
                why = f"no better in {since} evaluations"
            kept.algorithm, kept.last = algorithm.state(), algorithm.network
            kept.wall_s = time.monotonic() - begun_s
            kept.write(folder)
            on_step(TrainingStep(algorithm.iteration, kept.wall_s, judged, kept.best_iteration == algorithm.iteration))
            if why:
                return Trained(kept, why)
            plot("training", algorithm.iterate(pool))
