"""Training and judging one variant: in a process of its own, to be stopped at any moment and gone on with."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.ablations.gradients import Effort, as_json, measure
from experiments.ablations.switches import Look, Trial
from experiments.ablations.variants import VARIANTS, Budget, Variant, make
from policies.base import FloatArray, Policy
from simulator.training.checkpoint import write_whole
from simulator.training.pool import Here
from simulator.training.scenarios import Randomised
from simulator.training.validation import Case, latencies

_SAVE_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class Job:
    """One variant."""

    name: str
    budget: Budget
    draw: Randomised
    sets: Mapping[str, Sequence[Case]]
    """On which it is judged, by title."""
    requests: int
    """Of each case."""
    folder: Path
    """Of all that is kept."""


@dataclass(frozen=True, slots=True)
class EstimatesJob:
    """The estimates of the gradient."""

    draw: Randomised
    effort: Effort
    folder: Path


def run(job: Job | EstimatesJob) -> dict[str, Any]:
    """Do what is not done yet; returns the outcome, which is also kept in the folder."""
    if isinstance(job, EstimatesJob):
        kept = job.folder / "estimates.json"
        if not kept.exists():
            write_whole(kept, json.dumps(as_json(measure(job.draw, job.effort), job.effort)).encode())
        return _read(kept)
    kept = job.folder / f"{job.name}.json"
    outcome = _read(kept) if kept.exists() else {"judged": {}}
    missing = {title: cases for title, cases in job.sets.items() if title not in outcome["judged"]}
    if missing:
        policy, spent = trained(job)
        outcome |= spent
        for title, cases in missing.items():
            mean_s, p99_s = _judged(cases, job.requests, policy)
            outcome["judged"][title] = {"mean_s": mean_s.tolist(), "p99_s": p99_s.tolist()}
            write_whole(kept, json.dumps(outcome).encode())
    return outcome


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def trained(job: Job, now_s: Callable[[], float] = time.perf_counter) -> tuple[Policy, dict[str, Any]]:
    """The variant's policy after its budget, and what that took; its state is kept in the folder."""
    variant = VARIANTS[job.name]
    if variant.policy is not None:
        return variant.policy, {"decisions": 0, "seconds": 0.0}
    algorithm = make(variant, job.budget, job.draw)
    kept = job.folder / f"{job.name}.npz"
    spent_s = _restored(algorithm, kept)
    saved_s = now_s()
    while algorithm.iteration < algorithm.settings.iterations:
        began_s = now_s()
        algorithm.iterate(Here())
        spent_s += now_s() - began_s
        if now_s() - saved_s > _SAVE_EVERY_S or algorithm.iteration == algorithm.settings.iterations:
            _save(algorithm.state(), spent_s, kept)
            saved_s = now_s()
    return _policy(variant, algorithm), {"decisions": algorithm.iteration * algorithm.decisions, "seconds": spent_s}


def _judged(cases: Sequence[Case], requests: int, policy: Policy) -> FloatArray:
    """Mean and p99 of each case in seconds, `(2, cases)`; played side by side where settings that a batch shares are
    alike."""
    alike: dict[str, list[int]] = {}
    for i, case in enumerate(cases):
        settings = case.scenario.fleet.settings
        alike.setdefault(str((settings.estimators, settings.sticky_keys)), []).append(i)
    found = np.zeros((2, len(cases)))
    for chosen in alike.values():
        found[:, chosen] = latencies([cases[i] for i in chosen], requests, policy, Here())
    return found


def _policy(variant: Variant, algorithm: Any) -> Policy:
    return Trial(algorithm.network, Look(variant.ablation))


def _save(state: dict[str, FloatArray], spent_s: float, path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, **{f"algorithm/{name}": array for name, array in state.items()}, spent_s=spent_s)  # type: ignore[arg-type]  # numpy's stub takes no arrays by name
    write_whole(path, content.getvalue())


def _restored(algorithm: Any, path: Path) -> float:
    """Go on from what was kept, if anything was; returns the seconds spent before."""
    if not path.exists():
        return 0.0
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    spent_s = float(arrays.pop("spent_s"))
    algorithm.restore({name.removeprefix("algorithm/"): array for name, array in arrays.items()})
    return spent_s
