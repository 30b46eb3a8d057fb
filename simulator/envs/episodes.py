"""Episodes of many fleets side by side: decisions, rewards and ends. The environments are two faces of this."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from policies.base import BoolArray, FloatArray
from simulator.arrivals import Arrivals
from simulator.batch import Batch, IntArray
from simulator.engine import layout as at
from simulator.envs.charges import Charges
from simulator.envs.observation import Observation, observe
from simulator.envs.sampling import Load, Sampler, Scenarios
from simulator.result import Result
from simulator.scenario import Scenario

SPARE = 64
"""Arrivals after an episode's last: if some are refused before anybody is asked, the next one shows the last state."""

_REMEDY = (
    "name it, or one as large, among the environment's own; a function's first draws tell how large its fleets are"
)


class Settings(TypedDict, total=False):
    """Keyword arguments of both environments; see `Episodes`."""

    requests: int
    load: Load
    reward_scale: float
    deadline_charge_s: float
    tail_charge: float
    tail_from_s: float | None
    max_in_system: int | None


class Step(NamedTuple):
    """What a step brought, `(e,)` each."""

    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    invalid: BoolArray


class Episodes:
    """One batch of environments, each in an episode of its own.

    Args:
        environments: How many.
        scenario: A scenario or its name; several: each episode draws one; a function: returns each episode's. Fleets
            are filled up to the largest with workers that cannot be picked.
        requests: That arrive in an episode, whether they are decided or refused at once.
        load: Share of the fleet's capacity; two: between which each episode draws one; None: the scenario's own.
        reward_scale: Reward per second of cost, above 0; with 10, the mean reward of a step is about -10 times the mean
            seconds that a request is in the system.
        deadline_charge_s: Seconds charged for each request that ends after its deadline, or failed.
        tail_charge: Charged for each second of a request's latency beyond `tail_from_s`.
        tail_from_s: Where the tail begins; None: at each request's own deadline.
        max_in_system: With more requests in the system an episode terminates, and is charged for as many until its last
            arrival; None: no limit.

    Raises:
        ValueError: an argument is out of range; named, with the remedy.
    """

    def __init__(
        self,
        environments: int,
        scenario: Scenarios,
        *,
        requests: int = 1500,
        load: Load = None,
        reward_scale: float = 10.0,
        deadline_charge_s: float = 0.0,
        tail_charge: float = 0.0,
        tail_from_s: float | None = None,
        max_in_system: int | None = None,
    ) -> None:
        """Allocate; nothing has happened yet."""
        for name, value, least in (
            ("num_envs", environments, 1),
            ("requests", requests, 2),
            ("reward_scale", reward_scale, 1e-9),
            ("deadline_charge_s", deadline_charge_s, 0),
            ("tail_charge", tail_charge, 0),
            ("tail_from_s", tail_from_s or 0.0, 0),
            ("max_in_system", 1 if max_in_system is None else max_in_system, 1),
        ):
            if not least <= value < np.inf:
                raise ValueError(f"{name} is {value}: give a finite number of at least {least}")
        self._sampler = Sampler(scenario, load, requests + SPARE)
        room = self._sampler.room
        nothing = no_arrivals(requests + SPARE)
        self.batch = Batch([room] * environments, [nothing] * environments, [0] * environments)
        self.workers, self.models = len(room.workers), len(room.models)
        self.requests = requests
        self.scenarios: list[Scenario | None] = [None] * environments
        self.last_pick: IntArray = np.full(environments, -1)
        self.running: BoolArray = np.zeros(environments, np.bool_)
        self._reward_scale = reward_scale
        self._charges = Charges(self.batch, deadline_charge_s, tail_charge, tail_from_s)
        self._max_in_system = np.inf if max_in_system is None else max_in_system
        self._integral_s = np.zeros(environments)

    def reset(self, e: int, generator: np.random.Generator, options: dict[str, Any]) -> None:
        """Begin another episode in environment `e`, at its first decision; options: see `Sampler.draw`."""
        scenario, arrivals, seed = self._sampler.draw(generator, options)
        try:
            self.batch.load(e, scenario.fleet, arrivals, seed)
        except ValueError as error:
            raise ValueError(f"scenario {scenario.name!r} does not fit: {error}; {_REMEDY}") from error
        if not self.batch.waiting[e]:
            raise ValueError(
                f"scenario {scenario.name!r} refuses every request of an episode before anybody is asked: "
                "its workers or settings.limits leave no choice"
            )
        self.scenarios[e] = scenario
        self.last_pick[e] = -1
        self.running[e] = True
        self._charges.reset(e)
        self._integral_s[e] = self.batch.pending_integral_s[e]

    def step(self, actions: npt.NDArray[np.integer[Any]], active: BoolArray) -> Step:
        """Send what waits in the environments `active` to the workers `actions`, `(e,)` each, and go on.

        Raises:
            ResetNeeded: the episode of one of them is over.
            ValueError: an action is no worker's number.
        """
        if np.any(active & ~self.running):
            raise ResetNeeded("an episode is over, or none has begun: call reset() before step()")
        chosen, invalid = self._choose(actions, active)
        self.batch.waiting &= active
        self.batch.step(chosen)
        self.last_pick[active] = chosen[active]
        cost_s = self.batch.pending_integral_s - self._integral_s + self._charges.since_last(active)
        truncated = active & (~self.batch.waiting | (self.batch.deciding >= self.requests))
        terminated = active & ~truncated & (self.in_system > self._max_in_system)
        if terminated.any():
            left_s = self.batch.sim.demand.time_s[:, self.requests] - self.batch.now_s
            cost_s[terminated] += self._max_in_system * np.maximum(left_s[terminated], 0.0)
        self._integral_s[active] = self.batch.pending_integral_s[active]
        self.running &= ~(truncated | terminated)
        return Step(np.where(active, -self._reward_scale * cost_s, 0.0), terminated, truncated, invalid)

    def _choose(self, actions: npt.NDArray[np.integer[Any]], active: BoolArray) -> tuple[IntArray, BoolArray]:
        """Actions as they are carried out, and which of them were invalid."""
        chosen: IntArray = np.where(active, actions, 0).astype(np.int64)
        if np.any((chosen < 0) | (chosen >= self.workers)):
            raise ValueError(f"actions are {actions}: give each environment a worker from 0 to {self.workers - 1}")
        mask = self.batch.sim.state.mask
        invalid: BoolArray = active & ~mask[np.arange(len(chosen)), chosen]
        if invalid.any():
            least = np.where(mask, self.batch.view().pending, np.inf).argmin(axis=1)
            chosen[invalid] = least[invalid]
        return chosen, invalid

    @property
    def in_system(self) -> IntArray:
        """Requests that have arrived and not been answered, `(e,)`; the one that waits is counted."""
        in_system: IntArray = self.batch.sim.state.counts[:, at.IN_SYSTEM]
        return in_system

    def observe(self) -> Observation:
        """What the agents see, `(e, ...)`; new arrays."""
        return observe(self.batch)

    def action_masks(self) -> BoolArray:
        """Workers that may be picked, `(e, n)`, a new array; all where no request waits, since nothing is decided."""
        masks: BoolArray = self.batch.sim.state.mask | ~self.batch.waiting[:, None]
        return masks

    def infos(self, invalid: BoolArray | None = None) -> dict[str, npt.NDArray[Any]]:
        """What is told beside the observation, `(e, ...)` each; new arrays."""
        return {
            "action_mask": self.action_masks().astype(np.int8),
            "invalid_action": np.zeros(len(self.running), np.bool_) if invalid is None else invalid,
            "in_system": self.in_system.copy(),
            "now_s": self.batch.now_s.copy(),
        }

    def info(self, e: int, invalid: BoolArray | None = None) -> dict[str, Any]:
        """The infos of one environment: a new array for the mask, and plain numbers."""
        infos = {name: column[e] for name, column in self.infos(invalid).items()}
        return {name: value if value.ndim else value.item() for name, value in infos.items()}

    def result(self) -> Result:
        """All requests of the present episodes, `(e, requests + SPARE)`; those still to come are UNFINISHED."""
        return self.batch.result()


def no_arrivals(requests: int) -> Arrivals:
    """What environments hold until their first reset."""
    zeros = np.zeros(requests)
    whole = zeros.astype(np.int16)
    return Arrivals(
        time_s=zeros,
        model=whole,
        rows=np.ones(requests, np.int32),
        work=zeros,
        key=zeros.astype(np.uint64),
        deadline_s=zeros,
        priority=whole,
        balancer=whole,
        tenant=whole,
    )
