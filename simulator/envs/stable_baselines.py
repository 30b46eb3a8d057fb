"""The vector environment as Stable-Baselines3 wants it, so that its algorithms step one batch; needs that package."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from simulator.envs.fleet import Actions, FlattenFleets, FleetVectorEnv


class StableBaselinesEnvs(VecEnv):
    """Steps a `FleetVectorEnv`, flattened or not, whose automatic resets are in the SAME_STEP.

    What SB3 calls an attribute or a method of each environment is the vector environment's, by `call`.
    """

    def __init__(self, envs: FleetVectorEnv | FlattenFleets) -> None:
        """Take a vector environment over.

        Raises:
            ValueError: it resets otherwise.
        """
        mode = envs.metadata["autoreset_mode"]
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"autoreset_mode is {mode}: Stable-Baselines3 needs AutoresetMode.SAME_STEP")
        self._envs = envs
        self._actions: Actions = np.zeros(envs.num_envs, np.int64)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> VecEnvObs:
        if any(options != self._options[0] for options in self._options):
            raise ValueError(f"options are {self._options}: give all environments the same")
        observations, _ = self._envs.reset(seed=self._seeds, options=self._options[0])
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Actions) -> None:
        """Take the actions, `(num_envs,)`, of the next `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step; the infos are a dictionary each."""
        observations, rewards, terminated, truncated, found = self._envs.step(self._actions)
        over = terminated | truncated
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        for e in np.flatnonzero(over):
            infos[e] = {"terminal_observation": found["final_obs"][e], "TimeLimit.truncated": bool(truncated[e])}
        return observations, rewards.astype(np.float32), over, infos

    def close(self) -> None:
        self._envs.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(self._envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise NotImplementedError(f"{attr_name} cannot be set in one environment of a batch: make another")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """What the method has for each environment; `action_masks` is what sb3-contrib asks for."""
        found = self._envs.call(method_name, *args, **kwargs)
        return [found[e] for e in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))

    def get_images(self) -> list[Any]:
        return list(self._envs.render() or [None] * self.num_envs)
