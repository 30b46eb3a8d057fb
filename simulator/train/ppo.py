"""Proximal policy optimisation: the gradient from single decisions, each judged by what it cost thereafter.

Costs as in `collect.py`, less the control variate; advantages by generalised advantage estimation; clipped steps. Time
passes between decisions as it will, so the discount is one of time (a semi-Markov decision process): after
`horizon` mean latencies of `expected_latency` a cost counts for 1/e. That is a bias: a queue made longer is worked off
in a few latencies, and what comes later is noise.

It needs more time for each decision than `pgpe.py`, which trained what is shipped; docs/results.md
compares them.

Sources: Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347; Schulman et al. 2016,
High-dimensional continuous control using generalized advantage estimation, ICLR; Bradtke and Duff 1994, Reinforcement
learning methods for continuous-time Markov decision problems, NIPS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from balancer.files.schema import CHECKED, Count, NotNegative, Positive
from policies.base import BoolArray, FloatArray
from policies.learned.network import Network
from simulator.train.actor import Critic
from simulator.train.arena import Draw
from simulator.train.collect import CollectedDecisions, CollectTask, collect, joined, normalised, relative_cost
from simulator.train.learner import Learner
from simulator.train.pool import TaskPool, parts_of
from simulator.train.settings import DecisionSettings


@dataclass(config=CHECKED, frozen=True, slots=True)
class PpoSettings(DecisionSettings):
    """How it collects and steps."""

    tasks: Count = 2
    """Into which an iteration is cut, at most as many as episodes; fewer are cheaper."""
    critic_hidden: Count = 16
    trace: Positive = 1.0
    """After which the advantage relies on the critic for what comes (the decay of GAE), in mean latencies."""
    epochs: Count = 1
    minibatch: Count = 2048
    learning_rate: NotNegative = 2e-3
    clip: NotNegative = 0.2
    """Of the ratio of new to old probability."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the networks are trained; episodes are simulated on the CPU."""

    def __post_init__(self) -> None:
        """Raise `ValueError` where the device is not there."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is cuda, and torch finds none here: give cpu, or install a torch with CUDA")


_LONGEST_GRADIENT = 1.0
_VALUE_WEIGHT = 0.5


class Ppo(Learner):
    """The algorithm: state, and one iteration after the other. See `trainer.Algorithm`."""

    settings: PpoSettings

    def __init__(self, settings: PpoSettings, draw: Draw, seed: int, start: Network | None = None) -> None:
        """`start`: where to begin, of as many hidden units as the settings say; None: random, from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.critic = Critic(settings.critic_hidden).to(settings.device)
        super().__init__(settings, draw, seed, start, {"critic": self.critic}, settings.device)

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """Collect and learn; returns what to plot."""
        self.iteration += 1
        found = joined(pool.map(collect, list(self._tasks())))
        cost = relative_cost(found)
        estimate = self._estimates(found)
        advantage, target = advantages(cost, estimate, found.passed, found.taken, self.settings)
        told = self._learn(_columns(found, normalised(advantage, found.taken), target, self.settings.device))
        spread = float(np.var(target[found.taken]))
        explained = 1 - np.var((target - estimate)[found.taken]) / max(spread, 1e-9)
        mean = found.cost.sum() / found.expected_cost.sum()
        return told | {"explained": float(explained), "cost": float(mean), "beta": float(self.network.beta)}

    def _tasks(self) -> Iterator[CollectTask]:
        s = self.settings
        for part, episodes in enumerate(parts_of(s.episodes, s.tasks)):
            seed = (self._seed, self.iteration, part)
            yield CollectTask(self._draw, self.network, episodes, s.requests, s.tail_weight, s.deadline_weight, seed)

    def _estimates(self, found: CollectedDecisions) -> FloatArray:
        """The critic's, `(t, e)`."""
        columns = (found.features, found.queue, found.state, found.eligible)
        parts = zip(*(torch.split(torch.from_numpy(column), 64) for column in columns), strict=True)
        with torch.no_grad():
            rows = [self.critic(*(each.to(self.settings.device) for each in part)) for part in parts]
        return torch.cat(rows).cpu().numpy().astype(np.float64)

    def _learn(self, columns: dict[str, Tensor]) -> dict[str, float]:
        s = self.settings
        self._shrink_steps()
        generator = np.random.default_rng((self._seed, self.iteration, s.tasks))
        sums, count, spread = np.zeros(3), 0, columns["target"].var()
        for _ in range(s.epochs):
            order = torch.from_numpy(generator.permutation(len(columns["worker"])))
            for chosen in torch.split(order, s.minibatch):
                rows = chosen.to(s.device)
                loss, told = self._loss({name: column[rows] for name, column in columns.items()}, spread)
                self._optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own is untyped
                for module in (self._actor, self.critic):
                    nn.utils.clip_grad_norm_(module.parameters(), _LONGEST_GRADIENT)
                self._optimiser.step()
                sums, count = sums + told, count + 1
        return dict(zip(("divergence", "entropy", "critic_loss"), (sums / max(count, 1)).tolist(), strict=True))

    def _loss(self, b: dict[str, Tensor], spread: Tensor) -> tuple[Tensor, FloatArray]:
        """Of some decisions; `spread`: the variance of all targets."""
        logarithms = self._actor(b["features"], b["terms"], b["relative_cost"], b["eligible"])
        now = logarithms.gather(1, b["worker"][:, None])[:, 0]
        before, advantage = b["log_probability"], b["advantage"]
        ratio = (now - before).exp()
        clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
        # Advantages are costs: less is better, so the larger of the two is the pessimistic one.
        policy_loss = torch.max(ratio * advantage, clipped * advantage).mean()
        estimate = self.critic(b["features"], b["queue"], b["state"], b["eligible"])
        critic_loss = (estimate - b["target"]).square().mean() / (spread + 1e-6)
        with torch.no_grad():
            entropy = torch.special.entr(logarithms.exp()).sum(-1).mean()
            told = np.array([float((before - now).mean()), float(entropy), float(critic_loss)])
        return policy_loss + _VALUE_WEIGHT * critic_loss, told


def _columns(found: CollectedDecisions, advantage: FloatArray, target: FloatArray, device: str) -> dict[str, Tensor]:
    """The decisions that were taken, one after the other, as tensors by name."""

    def column(values: npt.NDArray[Any]) -> Tensor:
        chosen = values[found.taken]
        return torch.from_numpy(chosen.astype(np.float32) if chosen.dtype == np.float64 else chosen).to(device)

    columns = {**found._asdict(), "advantage": advantage, "target": target}
    return {name: column(values) for name, values in columns.items()}


def advantages(
    cost: FloatArray, estimate: FloatArray, passed: FloatArray, taken: BoolArray, settings: PpoSettings
) -> tuple[FloatArray, FloatArray]:
    """GAE's advantage of each decision, and what the critic should have said; `(t, e)`.

    Nothing comes after the last decision of an episode: it runs to its end.
    """
    discount = np.exp(-passed / settings.horizon)
    kept = discount * np.exp(-passed / settings.trace)
    advantage = np.zeros_like(cost)
    coming, following = np.zeros(cost.shape[1]), np.zeros(cost.shape[1])
    for t in reversed(range(len(cost))):
        surprise = cost[t] + discount[t] * following - estimate[t]
        coming = np.where(taken[t], surprise + kept[t] * coming, 0.0)
        following = np.where(taken[t], estimate[t], 0.0)
        advantage[t] = coming
    return advantage, np.where(taken, advantage + estimate, 0.0)
