"""The loop around an algorithm: iterate, evaluate, keep the best, write checkpoints, know when to stop.

Nothing that the weights depend on is read from the clock, the machine or the pool, so a run that was killed and resumed
ends with the weights of one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tensorboard.summary import Writer

from policies.base import FloatArray
from policies.learned.network import Network
from simulator.train.checkpoint import Checkpoint
from simulator.train.plan import ResolvedPlan
from simulator.train.pool import TaskPool
from simulator.train.validation import NetworkVerdict, Validation

OUT_OF_TIME = "the time is over"


class Algorithm(Protocol):
    """How weights become better; made from its settings, `arena.Draw`, a seed, and maybe weights to start from."""

    settings: Any
    """A frozen dataclass with at least `iterations` and `hidden`."""
    iteration: int
    """How many are done."""

    @property
    def network(self) -> Network:
        """At present."""

    @property
    def decisions(self) -> int:
        """Of one iteration."""

    def state(self) -> dict[str, FloatArray]:
        """All that the next iterations depend on, beside settings and seed."""

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Go on from a state."""

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """One step; returns what to plot. The same whatever the pool."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """What there is to tell after an iteration."""

    iteration: int
    wall_s: float
    """Of the run so far."""
    judged: NetworkVerdict | None
    """Where it was evaluated."""
    best: bool
    """Whether that is the best so far."""


@dataclass(frozen=True, slots=True)
class Trained:
    """How a run ended."""

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
    told: Callable[[TrainingStep], None] = lambda step: None,
) -> Trained:
    """Run to the end.

    Args:
        course: What to do.
        folder: For checkpoints and TensorBoard.
        pool: Where episodes are played.
        found: The checkpoint to go on from; None: begin.
        limit_s: Begin no iteration after so long, all parts of the run counted.
        told: Called after each iteration.
    """
    algorithm: Algorithm = course.algorithm
    if found is not None:
        algorithm.restore(found.algorithm)
    kept = found or Checkpoint(algorithm.state(), best=algorithm.network, last=algorithm.network)
    validation = Validation(course.validation, course.run.episode_requests, course.run.random_share, pool)
    begun_s = time.monotonic() - kept.wall_s
    writer = Writer(str(folder / "tensorboard"))
    try:
        while True:
            why = _ended(algorithm, kept, limit_s)
            judged = None
            if _due(algorithm, course, kept, why):
                judged = validation.judge(algorithm.network, pool)
                _take_in(kept, algorithm, judged)
                _plot(writer, "validation", judged._asdict(), algorithm.iteration)
            why = why or _no_better(course, kept)
            kept.algorithm, kept.last = algorithm.state(), algorithm.network
            kept.wall_s = time.monotonic() - begun_s
            kept.write(folder)
            told(TrainingStep(algorithm.iteration, kept.wall_s, judged, kept.best_iteration == algorithm.iteration))
            if why:
                return Trained(kept, why)
            _plot(writer, "training", algorithm.iterate(pool), algorithm.iteration)
    finally:
        writer.close()


def _ended(algorithm: Algorithm, kept: Checkpoint, limit_s: float) -> str:
    if algorithm.iteration >= algorithm.settings.iterations:
        return "all iterations are done"
    return OUT_OF_TIME if kept.wall_s >= limit_s else ""


def _due(algorithm: Algorithm, course: ResolvedPlan, kept: Checkpoint, ending: str) -> bool:
    """Whether to evaluate now; what a checkpoint has is not evaluated again."""
    if kept.curve and kept.curve[-1]["iteration"] == algorithm.iteration:
        return False
    return bool(ending) or algorithm.iteration % course.run.evaluate_every == 0


def _take_in(kept: Checkpoint, algorithm: Algorithm, judged: NetworkVerdict) -> None:
    best = min((each["cost"] for each in kept.curve if np.isfinite(each["cost"])), default=np.inf)
    if judged.cost < best:
        kept.best, kept.best_iteration = algorithm.network, algorithm.iteration
    kept.curve.append({"iteration": algorithm.iteration, **judged._asdict()})


def _no_better(course: ResolvedPlan, kept: Checkpoint) -> str:
    since = sum(each["iteration"] > kept.best_iteration for each in kept.curve)
    return f"no better in {since} evaluations" if since >= course.run.patience else ""


def _plot(writer: Writer, part: str, numbers: dict[str, float], iteration: int) -> None:
    for name, number in numbers.items():
        writer.add_scalar(f"{part}/{name}", number, iteration)
    writer.flush()
