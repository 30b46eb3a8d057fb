"""What algorithms that learn from single decisions have in common: an actor, Adam, and both as arrays by name, so that
training can be resumed exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from policies.base import FloatArray
from policies.learned.network import Network
from simulator.train.actor import FASTER, Actor, parameter_groups
from simulator.train.arena import Draw
from simulator.train.weights import initial

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_LEAST_RATE = 0.05
"""Of the learning rate, at the end."""


class Learner:
    """An actor that is trained, maybe with other modules; see `trainer.Algorithm`."""

    def __init__(
        self,
        settings: Any,
        draw: Draw,
        seed: int,
        start: Network | None,
        modules: Mapping[str, nn.Module] = MappingProxyType({}),
        device: str = "cpu",
    ) -> None:
        """`settings`: with `DecisionSettings` and a `learning_rate`. `modules`: what is trained beside the actor."""
        self.settings, self._draw, self._seed = settings, draw, seed
        self.iteration = 0
        network = start or initial(np.random.default_rng((seed, 0)), settings.hidden, settings.beta)
        self._actor = Actor(network).to(device)
        self._modules: dict[str, nn.Module] = {"actor": self._actor, **modules}
        self._optimiser = torch.optim.Adam(parameter_groups(self._actor, settings.learning_rate, FASTER))
        for module in modules.values():
            self._optimiser.add_param_group({"params": list(module.parameters()), "faster": 1.0})

    @property
    def network(self) -> Network:
        """At present."""
        return self._actor.network()

    @property
    def decisions(self) -> int:
        """Of one iteration, at most: a request that nobody may serve has none."""
        return int(self.settings.episodes * self.settings.requests)

    def state(self) -> dict[str, FloatArray]:
        """All that the next iterations depend on, beside settings and seed."""
        found: dict[str, FloatArray] = {"iteration": np.array(float(self.iteration))}
        for name, parameter in _parameters(self._modules):
            found[name] = parameter.detach().cpu().numpy().copy()
            for moment, value in self._optimiser.state.get(parameter, {}).items():
                found[f"{name}:{moment}"] = value.cpu().numpy().copy()
        return found

    def restore(self, state: Mapping[str, FloatArray]) -> None:
        """Go on from a state."""
        self.iteration = int(state["iteration"])
        with torch.no_grad():
            for name, parameter in _parameters(self._modules):
                parameter.copy_(torch.from_numpy(np.asarray(state[name])))
                self._optimiser.state.pop(parameter, None)
                moments = {moment: state[f"{name}:{moment}"] for moment in _MOMENTS if f"{name}:{moment}" in state}
                for moment, value in moments.items():
                    device = "cpu" if moment == "step" else parameter.device
                    self._optimiser.state[parameter][moment] = torch.tensor(value, device=device)

    def _shrink_steps(self) -> None:
        """Steps shrink linearly over the iterations."""
        rate = self.settings.learning_rate * max(_LEAST_RATE, 1 - self.iteration / self.settings.iterations)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * group["faster"]


def _parameters(modules: Mapping[str, nn.Module]) -> list[tuple[str, nn.Parameter]]:
    return [(f"{name}.{part}", each) for name, module in modules.items() for part, each in module.named_parameters()]
