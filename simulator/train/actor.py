"""The learned policy's network in torch, to be differentiated, and the critic that estimates what is still to come.

`Actor` is the same function as `policies.learned.network.Network` with `policies.learned.policy.shares`; its parameters
have the names of the network's fields, but for beta, whose logarithm is trained so that it stays above 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.base import FloatArray
from policies.learned.features import FEATURES
from policies.learned.network import Network
from simulator.train.collect import QUEUE, STATE

torch.set_num_threads(1)  # what is multiplied here is small, and other processes are at work

FASTER = {"bias": 10.0}
"""Parts that learn at a multiple of the others' rate: coefficients of cost terms are numbers around 1."""

_FARTHEST = 1e6
"""Where relative cost is cut off: float32 must hold it times beta."""
_USUAL_WORKERS = 5.0


class Actor(nn.Module):
    """Probabilities of the workers, as logarithms."""

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
        score = self.term(features, terms, eligible) - relative_cost.clamp(max=_FARTHEST)
        return torch.log_softmax((self.beta.exp() * score).masked_fill(~eligible, -torch.inf), dim=-1)

    def term(self, features: Tensor, terms: Tensor, eligible: Tensor) -> Tensor:
        """As `Network.term`."""
        hidden = torch.relu(features @ self.w1 + self.b1)
        mean = _mean(hidden, eligible)
        second = torch.relu(hidden @ self.w2 + (mean @ self.context + self.b2))
        coefficients = mean @ self.mix + self.bias
        return (second * self.out).sum(-1) - (terms * coefficients).sum(-1)

    def network(self) -> Network:
        """The weights as they are, for serving and simulating."""
        arrays: dict[str, FloatArray] = {
            name: parameter.detach().cpu().numpy().astype(np.float64) for name, parameter in self.named_parameters()
        }
        return Network(**{**arrays, "beta": np.exp(arrays["beta"])})


def parameter_groups(actor: Actor, learning_rate: float, faster: Mapping[str, float]) -> list[dict[str, Any]]:
    """For an optimiser: each part with its own learning rate; its multiple of `learning_rate` stays as `faster`."""
    return [
        {"params": [parameter], "lr": learning_rate * faster.get(name, 1.0), "faster": faster.get(name, 1.0)}
        for name, parameter in actor.named_parameters()
    ]


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
