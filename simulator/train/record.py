"""What is written down of a run: `config.json` before it; in the policy's file after it the record, and the ranges of
the inputs that it met, which the guard holds against those that it meets in production."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from policies.base import FloatArray
from policies.learned.artifact import Artifact, make_artifact
from policies.learned.features import FEATURES, Inputs
from policies.learned.network import Network
from simulator.batch import Batch
from simulator.train.arena import Draw, Task, arena, cut
from simulator.train.plan import ResolvedPlan, TrainingPlan
from simulator.train.pool import TaskPool
from simulator.train.trainer import Trained
from simulator.train.validation import scoreboard
from simulator.view import BatchView

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
    best = {**record, "iteration": kept.best_iteration, "scoreboard": board}
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
