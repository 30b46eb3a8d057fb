"""Torch modules and their Adam as arrays by name, so that training can be resumed exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from policies.base import FloatArray

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def state_of_optimiser(modules: Mapping[str, nn.Module], optimiser: torch.optim.Adam) -> dict[str, FloatArray]:
    """All that the next step depends on, beside the gradient."""
    found: dict[str, FloatArray] = {}
    for name, parameter in _parameters(modules):
        found[name] = parameter.detach().cpu().numpy().copy()
        for moment, value in optimiser.state.get(parameter, {}).items():
            found[f"{name}:{moment}"] = value.cpu().numpy().copy()
    return found


def restore_optimiser(
    state: Mapping[str, FloatArray], modules: Mapping[str, nn.Module], optimiser: torch.optim.Adam
) -> None:
    """Put modules and optimiser to where the state was taken."""
    with torch.no_grad():
        for name, parameter in _parameters(modules):
            parameter.copy_(torch.from_numpy(np.asarray(state[name])))
            optimiser.state.pop(parameter, None)
            moments = {moment: state[f"{name}:{moment}"] for moment in _MOMENTS if f"{name}:{moment}" in state}
            for moment, value in moments.items():
                device = "cpu" if moment == "step" else parameter.device
                optimiser.state[parameter][moment] = torch.tensor(value, device=device)


def _parameters(modules: Mapping[str, nn.Module]) -> list[tuple[str, nn.Parameter]]:
    return [(f"{name}.{part}", each) for name, module in modules.items() for part, each in module.named_parameters()]
