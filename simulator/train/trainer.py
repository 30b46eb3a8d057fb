"""The loop around PGPE: iterate, evaluate, keep the best, write checkpoints, know when to stop.

Nothing that the weights depend on is read from the clock, the machine or the pool, so a run that was killed and resumed
ends with the weights of one that was not.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.summary import Writer

from policies.base import FloatArray
from policies.learned.artifact import EVERYTHING, Artifact, make_artifact
from policies.learned.features import FEATURES, Inputs
from policies.learned.network import Network
from simulator.batch import Batch
from simulator.off_policy.report import one_decision_changed
from simulator.pool import TaskPool
from simulator.train.arena import Draw, Task, arena, cut
from simulator.train.cost_search import named
from simulator.train.plan import ResolvedPlan, TrainingPlan, not_trained_on
from simulator.train.validation import NetworkVerdict, Validation, learned, scoreboard
from simulator.view import BatchView

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


UNKNOWN = "unknown"
_FEW_EPISODES = 16
_PACKAGES = ("balancer", "numpy", "numba", "scipy", "ray")
_CODE = ("balancer", "policies", "simulator")

OUTERMOST = 1e-5
"""Share of the values that is left out at each end. A look at a fleet shows some 200 values: with a thousandth left
out, one look in five would be strange to a policy in the very fleets that it was trained on."""
_START_UP = 20
"""Decisions of each episode that are all looked at: the fleet is empty, and no report has come."""
_EVERY = 32
"""Of those after, one in so many."""
_RANGE_TASKS = 4
_MOST = np.array([feature.most for feature in FEATURES])
_SEED = 1 << 31
"""Where training has the iteration: these are other episodes of the same kind."""


def git() -> dict[str, Any]:
    """Hash of the commit that runs, and whether the code differs from it; unknown where this is no checkout."""
    here = Path(__file__).resolve()
    try:
        root = _git(here.parent, "rev-parse", "--show-toplevel")
        # Installed into an environment that lies in somebody's checkout, this is not that project's code.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        dirty = bool(_git(Path(root), "status", "--porcelain", "--", *_CODE))
        return {"hash": _git(here.parent, "rev-parse", "HEAD"), "dirty": dirty}
    except (OSError, subprocess.CalledProcessError):
        return {"hash": UNKNOWN, "dirty": UNKNOWN}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def cpus() -> int:
    return len(os.sched_getaffinity(0))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def config(plan: TrainingPlan, course: ResolvedPlan, command: str) -> dict[str, Any]:
    """`config.json`: with it and the versions it names, the run can be had again."""
    return {
        "plan": dataclasses.asdict(plan),
        "inputs": course.inputs,
        "command": command,
        "started": now(),
        "git": git(),
        "versions": versions(),
        "cpus": cpus(),
        "resumed": [],
    }


def artifacts(
    plan: TrainingPlan,
    course: ResolvedPlan,
    written: dict[str, Any],
    trained: Trained,
    jobs: str,
    pool: TaskPool,
    *,
    short: bool,
) -> tuple[Artifact, Artifact]:
    """The best policy and the last, with ranges and record; the best also with a scoreboard of its own. `short`: soon,
    with ranges of a few episodes and without a scoreboard.

    What the clock and the machine have a part in is under `made`: the rest is equal for equal plans and code.
    """
    settings, kept = course.algorithm.settings, trained.checkpoint
    network = kept.best
    lowest, highest = EVERYTHING
    if network.corrects or kept.last.corrects:
        episodes = min(settings.range_episodes, _FEW_EPISODES) if short else settings.range_episodes
        lowest, highest = ranges(network, course.draw, plan.seed, episodes, settings.episode_requests, pool)
    record = {
        **dataclasses.asdict(plan),
        "git": written["git"],
        "versions": written["versions"],
        "curve": [{name: round(number, 5) for name, number in each.items()} for each in kept.curve],
        "ended": trained.why,
        "decisions": course.algorithm.decisions * course.algorithm.iteration,
        "made": {
            "command": written["command"],
            "started": written["started"],
            "finished": now(),
            "wall_s": round(kept.wall_s),
            "cpus": cpus(),
            "jobs": jobs,
            "resumed": len(written["resumed"]),
        },
    }
    del record["schema"]  # the file has it, in full
    board = {} if short else scoreboard(network, course.report, settings.episode_requests, pool)
    tolls = named(network.tolls, course.places)
    best = {
        **{**record, "iteration": kept.best_iteration, "scoreboard": board, "tolls": tolls},
        **{"weighs_keys": course.weighs_keys, "off_policy": {}},
    }
    if plan.from_log and not short:
        best["off_policy"] = one_decision_changed(not_trained_on(plan), "off-policy", learned(network))
    last = {**record, "iteration": course.algorithm.iteration}
    return make_artifact(network, lowest, highest, best), make_artifact(kept.last, lowest, highest, last)


def ranges(
    network: Network, draw: Draw, seed: int, episodes: int, requests: int, pool: TaskPool
) -> tuple[FloatArray, FloatArray]:
    """Lowest and highest value of each input but for `OUTERMOST`, `(f,)` each, in episodes that the network plays; of
    an input that is a share, 0 and 1."""
    tasks = cut(episodes, _RANGE_TASKS, seed, _SEED)
    values = np.concatenate(pool.map(partial(_seen, network, draw, requests), tasks))
    lowest, highest = np.quantile(values, [OUTERMOST, 1 - OUTERMOST], axis=0)
    # No share is strange: a worker that fails more than any in training is the less to be picked, by the cost itself,
    # and to fall back on the baseline, which sees the same errors, would help nobody.
    shares = np.array([feature.unit == "share" for feature in FEATURES])
    lowest[shares], highest[shares] = 0.0, np.log1p(_MOST[shares])
    return lowest, highest


def _seen(network: Network, draw: Draw, requests: int, task: Task) -> FloatArray:
    """Inputs of eligible workers, `(k, f)`."""
    episodes, seed = task
    here = arena(draw, episodes, requests)
    generator = np.random.default_rng(seed)
    for e in range(episodes):
        here.load(e, generator)
    found: list[FloatArray] = []
    step = 0

    def see(batch: Batch, view: BatchView, given: Inputs, probabilities: FloatArray) -> None:
        nonlocal step
        if step < _START_UP or step % _EVERY == 0:
            found.append(given.features[view.eligible & batch.waiting[:, None]])
        step += 1

    here.play(network, see)
    return np.concatenate(found)
