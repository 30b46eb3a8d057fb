"""Observations as one row of numbers: for algorithms that take no dictionaries."""

from typing import Any, SupportsInt, cast

import numpy as np
from gymnasium.spaces.utils import flatten_space
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import FlattenObservation

from policies.base import BoolArray
from simulator.envs.observation import Float32Array, Observation
from simulator.envs.vector import Actions, FleetVectorEnv


class FlattenFleet(FlattenObservation[Float32Array, SupportsInt, Observation]):
    """The request, then the workers one after the other, `(g + n * f,)`."""

    def action_masks(self) -> BoolArray:
        """Workers that may be picked now, `(n,)`."""
        return self.env.get_wrapper_attr("action_masks")()


class FlattenFleets(VectorWrapper[Float32Array, Actions, Observation, Actions, Any]):
    """The same of a vector environment, `(num_envs, g + n * f)`; final observations are flattened as well."""

    def __init__(self, env: VectorEnv[Observation, Actions, Any]) -> None:
        super().__init__(env)
        self.single_observation_space = flatten_space(env.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, **kwargs: Any) -> tuple[Float32Array, dict[str, Any]]:
        observations, infos = self.env.reset(**kwargs)
        return _flat(observations), infos

    def step(self, actions: Actions) -> tuple[Float32Array, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        for e in np.flatnonzero(infos.get("_final_obs", False)):
            infos["final_obs"][e] = _flat(infos["final_obs"][e])
        return _flat(observations), rewards, terminated, truncated, infos

    def action_masks(self) -> BoolArray:
        """Workers that may be picked now, `(num_envs, n)`."""
        return cast(FleetVectorEnv, self.unwrapped).action_masks()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return cast(FleetVectorEnv, self.unwrapped).call(name, *args, **kwargs)


def _flat(observation: Observation) -> Float32Array:
    """`(..., g + n * f)`."""
    request, workers = observation["request"], observation["workers"]
    return np.concatenate([request, workers.reshape(*request.shape[:-1], -1)], axis=-1)
