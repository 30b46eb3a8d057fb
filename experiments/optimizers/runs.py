"""Training and judging, each in a process of its own, to be stopped at any moment and gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from experiments.optimizers.algorithms import AGAINST, ALGORITHMS, AT_EQUAL_TIME
from experiments.optimizers.options import SCALES
from experiments.trained import finish, outcome_of
from policies.base import Policy
from policies.expected_latency import ExpectedLatency
from simulator.training.arena import Draw
from simulator.training.checkpoint import write_whole
from simulator.training.validation import Case

Outcome = Mapping[str, Any]
"""As `run` writes it."""
_SHARES = "shares.json"


@dataclass(frozen=True, slots=True)
class Judges:
    """Episodes that nothing was trained on."""

    sets: Mapping[str, Sequence[Case]]
    """By title."""
    requests: int
    """Of each case."""


@dataclass(frozen=True, slots=True)
class Training:
    """One algorithm from one seed."""

    algorithm: str
    decisions: int
    seed: int
    draw: Draw

    @property
    def name(self) -> str:
        """Of what is kept."""
        return f"{self.algorithm}-{self.decisions}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Job:
    """What to judge: a policy as it is, or one that is trained before."""

    name: str
    given: Policy | Training
    judges: Judges
    folder: Path


def run(job: Job) -> dict[str, Any]:
    """Do what is not done yet; returns the outcome, which is also kept in the folder."""
    kept = job.folder / f"{job.name}.json"
    sets, requests = job.judges.sets, job.judges.requests
    return outcome_of(kept, sets, requests, lambda: _policy(job), lambda: click.echo(f"{job.name}: done"))


def _policy(job: Job) -> tuple[Policy, dict[str, Any]]:
    given = job.given
    if isinstance(given, Policy):
        return given, {}
    kind = ALGORITHMS[given.algorithm]
    algorithm = kind.make(given.decisions, given.draw, given.seed)
    spent_s = finish(algorithm, job.folder / f"{job.name}.npz")
    policy = kind.policy(algorithm)
    told = {
        "decisions": algorithm.iteration * algorithm.decisions,
        "iterations": algorithm.iteration,
        "cpu_s": float(spent_s.sum()),
        # The first iteration also loads what is compiled.
        "cpu_s_of_a_decision": float(np.median(spent_s)) / algorithm.decisions,
    }
    if isinstance(policy, ExpectedLatency):
        told["options"] = {name: getattr(policy, name) for name in SCALES}
    return policy, told


def shares(outcomes: Mapping[str, Sequence[Outcome]], folder: Path) -> dict[str, float]:
    """Of the decisions, how many each algorithm gets through in the time that `AGAINST` takes for all.

    Medians over trainings; `outcomes`: of all trainings at equal decisions. Kept in the folder: the clock is read once,
    and who goes on gets what was found then.
    """
    kept = folder / _SHARES
    if not kept.exists():
        cpu_s = {name: float(np.median([one["cpu_s_of_a_decision"] for one in of])) for name, of in outcomes.items()}
        found = {name: float(f"{cpu_s[AGAINST] / cpu_s[name]:.2g}") for name in AT_EQUAL_TIME if name in cpu_s}
        write_whole(kept, json.dumps(found).encode())
    return dict(json.loads(kept.read_text()))
