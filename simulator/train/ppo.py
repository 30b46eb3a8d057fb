"""Proximal policy optimisation: the gradient from single decisions, each judged by what it cost thereafter.

Costs as in `collect.py`, less the control variate; advantages by generalised advantage estimation; clipped steps. Time
passes between decisions as it will, so the discount is one of time (a semi-Markov decision process): after
`horizon` mean latencies of `expected_latency` a cost counts for 1/e. That is a bias: a queue made longer is worked off
in a few latencies, and what comes later is noise. It needs more time for each decision than `pgpe.py`.

Sources: Schulman et al. 2017, Proximal policy optimization algorithms, arXiv:1707.06347; Schulman et al. 2016,
High-dimensional continuous control using generalized advantage estimation, ICLR; Bradtke and Duff 1994, Reinforcement
learning methods for continuous-time Markov decision problems, NIPS.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.base import BoolArray, FloatArray
from policies.learned.features import FEATURES
from policies.learned.network import Network
from simulator.train.arena import Draw, cut
from simulator.train.collect import QUEUE, STATE, CollectedDecisions, collect, joined, normalised, relative_cost
from simulator.train.pool import TaskPool
from simulator.train.settings import PpoSettings

torch.set_num_threads(1)  # what is multiplied here is small, and other processes are at work

_FASTER = {"actor.bias": 10.0}
"""Parts that learn at a multiple of the others' rate: coefficients of cost terms are numbers around 1."""
_LEAST_RATE = 0.05
"""Of the learning rate, at the end."""
_LONGEST_GRADIENT = 1.0
_VALUE_WEIGHT = 0.5
_FARTHEST = 1e6
"""Where relative cost is cut off: float32 must hold it times beta."""
_USUAL_WORKERS = 5.0
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Actor(nn.Module):
    """The learned policy in torch: the same function as `Network` with `policies.learned.policy.shares`; its parameters
    have the names of the network's fields, but for beta, whose logarithm is trained so that it stays above 0.
    """

    w1: nn.Parameter
    b1: nn.Parameter
    w2: nn.Parameter
    context: nn.Parameter
    b2: nn.Parameter
    out: nn.Parameter
    mix: nn.Parameter
    bias: nn.Parameter
    beta: nn.Parameter

    def __init__(self, network: Network) -> None:
        """Begin with this network's weights."""
        super().__init__()
        parts = {**network._asdict(), "beta": np.log(network.beta)}
        for name, array in parts.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(array, dtype=torch.get_default_dtype())))

    def forward(self, features: Tensor, terms: Tensor, relative_cost: Tensor, eligible: Tensor) -> Tensor:
        """Logarithms of the probabilities `(..., n)`, -inf where not eligible; inputs as in `Inputs`."""
        hidden = torch.relu(features @ self.w1 + self.b1)
        mean = _mean(hidden, eligible)
        second = torch.relu(hidden @ self.w2 + (mean @ self.context + self.b2))
        coefficients = mean @ self.mix + self.bias
        term = (second * self.out).sum(-1) - (terms * coefficients).sum(-1)
        score = term - relative_cost.clamp(max=_FARTHEST)
        return torch.log_softmax((self.beta.exp() * score).masked_fill(~eligible, -torch.inf), dim=-1)

    def network(self) -> Network:
        """The weights as they are, for serving and simulating."""
        arrays: dict[str, FloatArray] = {
            name: parameter.detach().numpy().astype(np.float64) for name, parameter in self.named_parameters()
        }
        return Network(**{**arrays, "beta": np.exp(arrays["beta"])})


class Critic(nn.Module):
    """What is still to come after a decision, discounted; in mean latencies of `expected_latency`.

    A sum over workers, since what waits at each adds up, and a term for the fleet. It sees more than the policy may: in
    training the number in the system is known, and that which `expected_latency` has at this moment (`collect.STATE`).
    """

    def __init__(self, hidden: int) -> None:
        """Random hidden layers, and zero where the estimate comes out."""
        super().__init__()
        f, wide = len(FEATURES) + len(QUEUE), 8 * hidden
        self.one, self.two = nn.Linear(f, hidden), nn.Linear(hidden, hidden)
        self.context = nn.Linear(hidden, hidden, bias=False)
        self.queue, self.worker = nn.Linear(len(QUEUE), 1, bias=False), nn.Linear(hidden, 1)
        self.seen = nn.Linear(f, hidden)
        self.mixed, self.fleet = nn.Linear(2 * hidden + len(STATE), wide), nn.Linear(wide, 1)
        for last in (self.queue, self.worker, self.fleet):
            for parameter in last.parameters():
                nn.init.zeros_(parameter)

    def forward(self, features: Tensor, queue: Tensor, state: Tensor, eligible: Tensor) -> Tensor:
        """`(...)`, of features `(..., n, f)`, queue `(..., n, q)` and state `(..., s)`."""
        known = torch.cat([features, queue], dim=-1)
        hidden = torch.relu(self.one(known))
        second = torch.relu(self.two(hidden) + self.context(_mean(hidden, eligible)))
        each = self.worker(second) + self.queue(torch.expm1(queue).clamp(max=100.0))
        seen = torch.relu(self.seen(known)) * eligible[..., None]
        fleet = torch.cat([seen.sum(-2) / _USUAL_WORKERS, seen.amax(-2), state], dim=-1)
        summed = (each * eligible[..., None]).sum((-2, -1))
        estimate: Tensor = summed + self.fleet(torch.relu(self.mixed(fleet))).squeeze(-1)
        return estimate


def _mean(of: Tensor, eligible: Tensor) -> Tensor:
    """Over the eligible workers, `(..., 1, h)`."""
    count = eligible.sum(-1).clamp(min=1)[..., None, None]
    return (of * eligible[..., None]).sum(-2, keepdim=True) / count


class Ppo:
    """The algorithm: state, and one iteration after the other. See `trainer.Algorithm`."""

    def __init__(self, settings: PpoSettings, draw: Draw, seed: int, start: Network) -> None:
        """`start`: where to begin, of as many hidden units as the settings say."""
        self.settings, self._draw, self._seed = settings, draw, seed
        self.iteration = 0
        self._actor = Actor(start)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critic = Critic(settings.critic_hidden)
        modules = nn.ModuleDict({"actor": self._actor, "critic": self._critic})
        self._parameters = dict(modules.named_parameters())
        self._optimiser = torch.optim.Adam(
            [{"params": [each], "faster": _FASTER.get(name, 1.0)} for name, each in self._parameters.items()]
        )

    @property
    def network(self) -> Network:
        """At present."""
        return self._actor.network()

    @property
    def decisions(self) -> int:
        """Of one iteration, at most: a request that nobody may serve has none."""
        return self.settings.episodes * self.settings.requests

    def state(self) -> dict[str, FloatArray]:
        """All that the next iterations depend on, beside settings and seed."""
        found: dict[str, FloatArray] = {"iteration": np.array(float(self.iteration))}
        for name, parameter in self._parameters.items():
            found[name] = parameter.detach().numpy().copy()
            for moment, value in self._optimiser.state.get(parameter, {}).items():
                found[f"{name}:{moment}"] = value.numpy().copy()
        return found

    def restore(self, state: Mapping[str, FloatArray]) -> None:
        """Go on from a state."""
        self.iteration = int(state["iteration"])
        for name, parameter in self._parameters.items():
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(np.asarray(state[name])))
            moments = {moment: f"{name}:{moment}" for moment in _MOMENTS if f"{name}:{moment}" in state}
            self._optimiser.state[parameter] = {moment: torch.tensor(state[key]) for moment, key in moments.items()}

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """Collect and learn; returns what to plot."""
        s = self.settings
        self.iteration += 1
        played = partial(collect, s, self._draw, self.network)
        found = joined(pool.map(played, cut(s.episodes, s.tasks, self._seed, self.iteration)))
        cost = relative_cost(found)
        estimate = self._estimates(found)
        advantage, target = advantages(cost, estimate, found.passed, found.taken, s)
        columns = {**found._asdict(), "advantage": normalised(advantage, found.taken), "target": target}
        losses = self._learn({name: _tensor(values[found.taken]) for name, values in columns.items()})
        spread = float(np.var(target[found.taken]))
        explained = 1 - np.var((target - estimate)[found.taken]) / max(spread, 1e-9)
        mean = found.cost.sum() / found.expected_cost.sum()
        return losses | {"explained": float(explained), "cost": float(mean), "beta": float(self.network.beta)}

    def _estimates(self, found: CollectedDecisions) -> FloatArray:
        """The critic's, `(t, e)`."""
        columns = (found.features, found.queue, found.state, found.eligible)
        parts = zip(*(torch.split(torch.from_numpy(column), 64) for column in columns), strict=True)
        with torch.no_grad():
            return torch.cat([self._critic(*part) for part in parts]).numpy().astype(np.float64)

    def _learn(self, columns: dict[str, Tensor]) -> dict[str, float]:
        """Step after step over the decisions that were taken; returns what to plot."""
        s = self.settings
        rate = s.learning_rate * max(_LEAST_RATE, 1 - self.iteration / s.iterations)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * group["faster"]
        generator = np.random.default_rng((self._seed, self.iteration, s.tasks))
        sums, count, spread = np.zeros(3), 0, columns["target"].var()
        for _ in range(s.epochs):
            order = torch.from_numpy(generator.permutation(len(columns["worker"])))
            for rows in torch.split(order, s.minibatch):
                loss, losses = self._loss({name: column[rows] for name, column in columns.items()}, spread)
                self._optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own is untyped
                for module in (self._actor, self._critic):
                    nn.utils.clip_grad_norm_(module.parameters(), _LONGEST_GRADIENT)
                self._optimiser.step()
                sums, count = sums + losses, count + 1
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
        estimate = self._critic(b["features"], b["queue"], b["state"], b["eligible"])
        critic_loss = (estimate - b["target"]).square().mean() / (spread + 1e-6)
        with torch.no_grad():
            entropy = torch.special.entr(logarithms.exp()).sum(-1).mean()
            losses = np.array([float((before - now).mean()), float(entropy), float(critic_loss)])
        return policy_loss + _VALUE_WEIGHT * critic_loss, losses


def _tensor(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values)


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
