"""REINFORCE with a baseline: policy gradient in its plainest form, to be read first.

Play some episodes. After each decision add up what it and all that followed cost, later costs discounted (the return to
go). Subtract what was to be expected at that moment (the baseline). Then make decisions more probable by how much less
they cost than expected: step along

    - mean of (return to go - baseline) * gradient of log probability(the worker that was picked)

The baseline is linear in a few numbers that describe the fleet (`collect.STATE`), fitted by least squares to returns of
the previous iteration, so that it cannot know the present decisions; it changes the gradient's noise, not its mean.

`ppo.py` adds a critic that is a network, shorter memory and many steps from the same episodes; `pgpe.py`, which trained
what is shipped, does without single decisions.

Source: Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning,
Machine Learning 8.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from pydantic.dataclasses import dataclass

from balancer.files.schema import CHECKED, Positive
from policies.base import BoolArray, FloatArray
from policies.learned.network import Network
from simulator.train.actor import Actor
from simulator.train.arena import Draw
from simulator.train.collect import STATE, CollectedDecisions, CollectTask, collect, normalised, relative_cost
from simulator.train.learner import Learner
from simulator.train.pool import TaskPool
from simulator.train.settings import DecisionSettings


@dataclass(config=CHECKED, frozen=True, slots=True)
class ReinforceSettings(DecisionSettings):
    """How it collects and steps."""

    learning_rate: Positive = 2e-3


class Reinforce(Learner):
    """The algorithm: state, and one iteration after the other. See `trainer.Algorithm`."""

    settings: ReinforceSettings

    def __init__(self, settings: ReinforceSettings, draw: Draw, seed: int, start: Network | None = None) -> None:
        """`start`: where to begin, of as many hidden units as the settings say; None: random, from the seed."""
        super().__init__(settings, draw, seed, start)
        self._baseline = np.zeros(1 + len(STATE))

    def state(self) -> dict[str, FloatArray]:
        """All that the next iterations depend on, beside settings and seed."""
        return {**super().state(), "baseline": self._baseline}

    def restore(self, state: Mapping[str, FloatArray]) -> None:
        """Go on from a state."""
        super().restore(state)
        self._baseline = state["baseline"].copy()

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """One step; returns what to plot."""
        self.iteration += 1
        s, seed = self.settings, (self._seed, self.iteration)
        task = CollectTask(self._draw, self.network, s.episodes, s.requests, s.tail_weight, s.deadline_weight, seed)
        (found,) = pool.map(collect, [task])
        coming = returns_to_go(relative_cost(found), found.passed, found.taken, s.horizon)
        known = np.concatenate([np.ones((*found.taken.shape, 1)), found.state], axis=-1)
        surprise = coming - known @ self._baseline
        self._baseline = np.linalg.lstsq(known[found.taken], coming[found.taken], rcond=None)[0]
        self._step(found, normalised(surprise, found.taken))
        told = {"cost": float(found.cost.sum() / found.expected_cost.sum()), "beta": float(self.network.beta)}
        return told | {"spread": float(coming[found.taken].std()), "surprise": float(surprise[found.taken].std())}

    def _step(self, found: CollectedDecisions, surprise: FloatArray) -> None:
        self._shrink_steps()
        self._optimiser.zero_grad()
        loss(self._actor, found, surprise).backward()  # type: ignore[no-untyped-call]  # torch's own is untyped
        self._optimiser.step()


def returns_to_go(cost: FloatArray, passed: FloatArray, taken: BoolArray, horizon: float) -> FloatArray:
    """What each decision and all that followed in its episode cost, later costs discounted; `(t, e)`."""
    coming, found = np.zeros(cost.shape[1]), np.zeros_like(cost)
    for t in reversed(range(len(cost))):
        coming = np.where(taken[t], cost[t] + np.exp(-passed[t] / horizon) * coming, 0.0)
        found[t] = coming
    return found


def loss(actor: Actor, found: CollectedDecisions, weight: FloatArray) -> torch.Tensor:
    """Mean of weight times log probability; its gradient is the policy gradient where the weight is a return."""
    rows = torch.from_numpy(np.stack(np.nonzero(found.taken)))
    columns = (found.features, found.terms, found.relative_cost, found.eligible)
    logarithms = actor(*(torch.from_numpy(column)[rows[0], rows[1]] for column in columns))
    picked = logarithms.gather(1, torch.from_numpy(found.worker)[rows[0], rows[1], None])[:, 0]
    mean: torch.Tensor = (picked * torch.from_numpy(weight[found.taken].astype(np.float32))).mean()
    return mean
