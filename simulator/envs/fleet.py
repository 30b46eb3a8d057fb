"""The environment: a fleet of which each request asks for a worker."""

from collections.abc import Sequence
from typing import Any, SupportsInt, Unpack, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.spaces.utils import flatten_space
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import FlattenObservation

from policies.base import BoolArray, FloatArray
from simulator.envs.episodes import Episodes, EpisodeSettings, info, infos
from simulator.envs.observation import Float32Array, Observation, Shown, observation_space
from simulator.envs.rendering import RENDER_MODES, Frame, render
from simulator.envs.sampling import Scenarios
from simulator.result import Result

DEFAULT_SCENARIO = "heterogeneous-bursty"


class FleetEnv(gymnasium.Env[Observation, SupportsInt]):
    """Each step decides one request: the action is the worker that it is sent to.

    Args:
        scenario: See `Episodes`, as all other arguments.
        render_mode: `rgb_array`, or None.
        settings: Of `Episodes`.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 20}  # noqa: RUF012 - as the base has it

    def __init__(
        self,
        scenario: Scenarios = DEFAULT_SCENARIO,
        *,
        render_mode: str | None = None,
        **settings: Unpack[EpisodeSettings],
    ) -> None:
        self._episodes = Episodes(1, scenario, **settings)
        self.render_mode = render_mode
        space = observation_space(self._episodes.workers, self._episodes.models)
        self.observation_space = cast(gymnasium.Space[Observation], space)
        self.action_space = spaces.Discrete(self._episodes.workers)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin another episode.

        Args:
            seed: Begins the sequence of episodes anew; None: goes on in it.
            options: `scenario` and `load` of this episode, in place of the environment's own.
        """
        super().reset(seed=seed)
        self._episodes.reset(0, self.np_random, options or {})
        shown = self._episodes.window.look()
        return self._observation(shown), info(shown, np.zeros(1, np.bool_), 0)

    def step(self, action: SupportsInt) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Send the request that waits to worker `action`; one that may not be picked: see the README."""
        done = self._episodes.step(np.array([int(action)]), np.ones(1, np.bool_))
        shown = self._episodes.window.look()
        return (
            self._observation(shown),
            float(done.reward[0]),
            bool(done.terminated[0]),
            bool(done.truncated[0]),
            info(shown, done.invalid, 0),
        )

    def action_masks(self) -> BoolArray:
        """Workers that may be picked now, `(n,)`; the name is what sb3-contrib looks for."""
        return self._episodes.action_masks()[0]

    def render(self) -> Frame | None:
        """A picture of the fleet, `(height, width, 3)`; None without a render mode."""
        return render(self._episodes, 0) if self.render_mode == "rgb_array" else None

    def result(self) -> Result:
        """Every request of the present episode so far, arrays of shape `(1, k)`; those still to come are UNFINISHED."""
        return self._episodes.batch.result()

    def _observation(self, shown: Shown) -> Observation:
        return {name: column[0] for name, column in shown.observation.items()}


Actions = npt.NDArray[np.integer[Any]]
Stepped = tuple[Observation, FloatArray, BoolArray, BoolArray, dict[str, Any]]


class FleetVectorEnv(VectorEnv[Observation, Actions, npt.NDArray[Any]]):
    """`num_envs` environments, each step for step what a `FleetEnv` with its seed would be.

    Seeds, infos, automatic resets and `options["reset_mask"]` are as in `gymnasium.vector.SyncVectorEnv`.

    Args:
        num_envs: How many.
        scenario: See `Episodes`, as all other arguments.
        render_mode: `rgb_array`, or None.
        autoreset_mode: NEXT_STEP: the step after an episode's end resets, ignoring the action. SAME_STEP: the step that
            ends it resets too, and the last observation is in the infos. DISABLED: the caller resets.
        settings: Of `Episodes`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: Scenarios = DEFAULT_SCENARIO,
        *,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **settings: Unpack[EpisodeSettings],
    ) -> None:
        self._episodes = Episodes(num_envs, scenario, **settings)
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": list(RENDER_MODES), "render_fps": 20, "autoreset_mode": self._mode}
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space = observation_space(self._episodes.workers, self._episodes.models)
        self.single_action_space = spaces.Discrete(self._episodes.workers)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._over: BoolArray = np.zeros(num_envs, np.bool_)
        self._some_over = False
        self._everyone: BoolArray = np.ones(num_envs, np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin other episodes.

        Args:
            seed: Begins the environments' sequences of episodes anew: one each, or the first's, of which the others'
                follow; None: goes on in them.
            options: `scenario` and `load` of these episodes in place of the environments' own; `reset_mask`: which
                environments to reset, `(num_envs,)`, all by default.
        """
        seeds = self._seeds(seed)
        rest = dict(options or {})
        mask = _reset_mask(rest.pop("reset_mask", None), self.num_envs)
        for e in np.flatnonzero(mask):
            self._reset(int(e), seeds[e], rest)
        self._over &= ~mask
        self._some_over = bool(self._over.any())
        shown = self._episodes.window.look()
        return shown.observation, _with_masks(infos(shown, np.zeros(self.num_envs, np.bool_)), mask)

    def step(self, actions: Actions) -> Stepped:
        """Send what waits in each environment to worker `actions`, `(num_envs,)`."""
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,):
            raise ValueError(f"actions have shape {actions.shape}: give one for each of {self.num_envs} environments")
        resets = self._some_over and self._mode is AutoresetMode.NEXT_STEP
        done = self._episodes.step(actions, ~self._over if resets else self._everyone)
        invalid, last = done.invalid, {}
        if resets:
            self._reset_over()
        self._over, self._some_over = done.over, done.ended > 0
        if self._mode is AutoresetMode.SAME_STEP and done.ended:
            last = self._last_of_episodes(invalid)
            self._reset_over()
            invalid = invalid & ~done.over
        shown = self._episodes.window.look()
        both = last | _with_masks(infos(shown, invalid), self._everyone)
        return shown.observation, done.reward, done.terminated, done.truncated, both

    def action_masks(self) -> BoolArray:
        """Workers that may be picked now, `(num_envs, n)`."""
        return self._episodes.action_masks()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As of `SyncVectorEnv`: what the method or attribute `name` has for each environment."""
        found = getattr(self, name)
        found = found(*args, **kwargs) if callable(found) else found
        one_each = isinstance(found, np.ndarray | tuple) and len(found) == self.num_envs
        return tuple(found) if one_each else (found,) * self.num_envs

    def render(self) -> tuple[Frame, ...] | None:
        """A picture of each fleet, `(height, width, 3)`; None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        return tuple(render(self._episodes, e) for e in range(self.num_envs))

    def result(self) -> Result:
        """Every request of the present episodes so far, `(num_envs, k)`; those still to come are UNFINISHED."""
        return self._episodes.batch.result()

    def _reset_over(self) -> None:
        """Begin the next episode where one is over."""
        for e in np.flatnonzero(self._over):
            self._reset(int(e), None, {})

    def _reset(self, e: int, seed: int | None, options: dict[str, Any]) -> None:
        generator = self._generators[e]
        if seed is not None or generator is None:
            generator = self._generators[e] = seeding.np_random(seed)[0]
        self._episodes.reset(e, generator, options)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int):
            return [seed + e for e in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments: give one each, or a single number")
        return list(seed)

    def _last_of_episodes(self, invalid: BoolArray) -> dict[str, Any]:
        """Observations and infos of the episodes that are over, in the form of `SyncVectorEnv`."""
        shown = self._episodes.window.look()
        found: dict[str, Any] = {}
        for e in map(int, np.flatnonzero(self._over)):
            last = {name: column[e] for name, column in shown.observation.items()}
            one = {"final_obs": last, "final_info": info(shown, invalid, e)}
            found = self._add_info(found, one, e)
        return found


def _with_masks(found: dict[str, npt.NDArray[Any]], where: BoolArray) -> dict[str, Any]:
    both: dict[str, Any] = {}
    for name, column in found.items():
        both[name], both[f"_{name}"] = column, where.copy()
    return both


def _reset_mask(mask: Any, environments: int) -> BoolArray:
    if mask is None:
        return np.ones(environments, np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (environments,) or not mask.any():
        raise ValueError(f"reset_mask is {mask!r}: give an array of {environments} booleans, at least one of them True")
    return mask


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
