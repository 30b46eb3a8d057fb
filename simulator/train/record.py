"""What is written down of a run: `config.json` before it, and the record in the policy's file after it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from policies.learned.artifact import Artifact, make_artifact
from simulator.train.plan import ResolvedPlan, TrainingPlan
from simulator.train.pool import TaskPool
from simulator.train.ranges import ranges
from simulator.train.trainer import Trained
from simulator.train.validation import scoreboard

UNKNOWN = "unknown"
_FEW_EPISODES = 16
_PACKAGES = ("balancer", "numpy", "numba", "scipy", "torch", "ray")
_CODE = ("balancer", "policies", "simulator")


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
    """Of what computes."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def cpus() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def now() -> str:
    """For people."""
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
    run, kept = course.run, trained.checkpoint
    network = kept.best
    episodes = min(run.range_episodes, _FEW_EPISODES) if short else run.range_episodes
    lowest, highest = ranges(network, course.draw, plan.seed, episodes, run.episode_requests, pool)
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
    board = {} if short else scoreboard(network, course.report, run.episode_requests, pool)
    best = {**record, "iteration": kept.best_iteration, "scoreboard": board}
    last = {**record, "iteration": course.algorithm.iteration}
    return make_artifact(network, lowest, highest, best), make_artifact(kept.last, lowest, highest, last)
