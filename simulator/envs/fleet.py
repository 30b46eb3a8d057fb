"""The environment: a fleet of which each request asks for a worker."""

from typing import Any, SupportsInt, Unpack, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from policies.base import BoolArray
from simulator.envs.episodes import Episodes, EpisodeSettings, info
from simulator.envs.observation import Observation, Shown, observation_space
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
