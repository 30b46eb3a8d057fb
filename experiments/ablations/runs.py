"""Training and judging one variant: in a process of its own, to be stopped at any moment and gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.ablations.gradients import Effort, as_json, measure
from experiments.ablations.switches import Look, Trial
from experiments.ablations.variants import VARIANTS, Budget, make
from experiments.trained import finish, outcome_of
from policies.base import Policy
from simulator.training.checkpoint import write_whole
from simulator.training.scenarios import Randomised
from simulator.training.validation import Case


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
        estimates: dict[str, Any] = json.loads(kept.read_text())
        return estimates
    return outcome_of(job.folder / f"{job.name}.json", job.sets, job.requests, lambda: trained(job))


def trained(job: Job) -> tuple[Policy, dict[str, Any]]:
    """The variant's policy after its budget, and what that took; its state is kept in the folder."""
    variant = VARIANTS[job.name]
    if variant.policy is not None:
        return variant.policy, {"decisions": 0, "seconds": 0.0}
    algorithm = make(variant, job.budget, job.draw)
    spent_s = finish(algorithm, job.folder / f"{job.name}.npz")
    policy = Trial(algorithm.network, Look(variant.ablation))
    return policy, {"decisions": algorithm.iteration * algorithm.decisions, "seconds": float(spent_s.sum())}
