"""Episodes of many fleets side by side: decisions, rewards and ends. The environments are two faces of this."""

from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from balancer.kernel.worker_columns import pending
from policies.base import BoolArray, FloatArray, IntArray
from simulator.batch import Batch
from simulator.engine.allocate import TooLargeError
from simulator.engine.coming import request_of
from simulator.engine.compiled import compiled, from_source, inlined
from simulator.engine.knowledge import row
from simulator.engine.layout import DECIDING, NOW, Sim
from simulator.envs.charges import Charges, ChargeTerms
from simulator.envs.observation import Shown, Window
from simulator.envs.sampling import Load, Sampler, Scenarios
from simulator.scenario import Scenario

SPARE = 64
"""Arrivals after an episode's last: if some are refused before anybody is asked, the next one shows the last state."""

_DRAWS = 10
_REMEDY = (
    "name it, or one as large, among the environment's own; a function's first draws tell how large its fleets are"
)


class EpisodeSettings(TypedDict, total=False):
    """Keyword arguments of both environments; see `Episodes`."""

    requests: int
    load: Load
    reward_scale: float
    deadline_charge_s: float
    tail_charge: float
    tail_from_s: float | None
    max_in_system: int | None


class EpisodeStep(NamedTuple):
    """What a step brought, `(e,)` each."""

    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    over: BoolArray
    ended: int
    invalid: BoolArray
    """Actions that might not be taken; the least pending worker was."""


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
        self.batch = Batch.of_room(room, environments, requests + SPARE, self._sampler.prompts)
        self.workers, self.models = len(room.workers), len(room.models)
        self.requests = requests
        self.scenarios: list[Scenario | None] = [None] * environments
        self.last_pick: IntArray = np.full(environments, -1)
        self.running: BoolArray = np.zeros(environments, np.bool_)
        self.window = Window(self.batch)
        terms = ChargeTerms(
            reward_scale,
            deadline_charge_s,
            tail_charge,
            -1.0 if tail_from_s is None else tail_from_s,
            np.inf if max_in_system is None else max_in_system,
        )
        self._charges = Charges(self.batch, requests, terms)

    def reset(self, e: int, generator: np.random.Generator, options: dict[str, Any]) -> None:
        """Begin another episode in environment `e`, at its first decision; options: see `Sampler.draw`."""
        scenario = self._load(e, generator, options)
        if not self.batch.waiting[e]:
            raise ValueError(
                f"scenario {scenario.name!r} refuses every request of an episode before anybody is asked: "
                "its workers or settings.limits leave no choice"
            )
        self.scenarios[e] = scenario
        self.last_pick[e] = -1
        self.running[e] = True
        self._charges.reset(e)

    def _load(self, e: int, generator: np.random.Generator, options: dict[str, Any]) -> Scenario:
        draws = _DRAWS
        while True:
            scenario, arrivals, seed = self._sampler.draw(generator, options)
            draws -= 1
            try:
                self.batch.load(e, scenario.fleet, arrivals, seed)
            except ValueError as error:
                # Of prompts there may be more than of those that were looked at: rare, and others are as good.
                if draws == 0 or not (scenario.fleet.generates and isinstance(error, TooLargeError)):
                    raise ValueError(f"scenario {scenario.name!r} does not fit: {error}; {_REMEDY}") from error
            else:
                return scenario

    def step(self, actions: npt.NDArray[np.integer[Any]], active: BoolArray) -> EpisodeStep:
        """Send what waits in the environments `active` to the workers `actions`, `(e,)` each, and go on.

        Raises:
            ResetNeeded: the episode of one of them is over.
            ValueError: an action is no worker's number.
        """
        chosen, invalid = np.empty(len(active), np.int64), np.empty(len(active), np.bool_)
        actions = np.ascontiguousarray(actions, np.int64)
        error = _choose(
            self.batch.native, actions, active, self.running, self.batch.waiting, self.last_pick, chosen, invalid
        )
        if error == _NOT_RUNNING:
            raise ResetNeeded("an episode is over, or none has begun: call reset() before step()")
        if error:
            raise ValueError(f"actions are {actions}: give each environment a worker from 0 to {self.workers - 1}")
        self.batch.step(chosen)
        reward, ends, ended = self._charges.conclude(active, self.running)
        return EpisodeStep(reward, ends[0], ends[1], ends[2], ended, invalid)

    def action_masks(self) -> BoolArray:
        """Workers that may be picked, `(e, n)`, a new array; all where no request waits, since nothing is decided."""
        masks: BoolArray = self.batch.sim.decision.mask | ~self.batch.waiting[:, None]
        return masks


def infos(shown: Shown, invalid: BoolArray) -> dict[str, npt.NDArray[Any]]:
    """What comes beside the observation, `(e, ...)` each: the arrays themselves."""
    return {
        "action_mask": shown.mask,
        "invalid_action": invalid,
        "in_system": shown.in_system,
        "now_s": shown.now_s,
    }


def info(shown: Shown, invalid: BoolArray, e: int) -> dict[str, Any]:
    columns = infos(shown, invalid)
    return {name: column[e] if column.ndim > 1 else column.item(e) for name, column in columns.items()}


_NOT_RUNNING, _NO_WORKER = 1, 2


_pending = from_source(pending)


@compiled
def _choose(
    sim: Sim,
    actions: IntArray,
    active: BoolArray,
    running: BoolArray,
    waiting: BoolArray,
    last_pick: IntArray,
    chosen: IntArray,
    invalid: BoolArray,
) -> int:
    """Fill in the actions as they are carried out, and which of them were invalid; only `active` ones wait then.

    Returns 0; or, nothing done, what is wrong.
    """
    n = sim.sizes.workers
    for e in range(active.size):
        if active[e] and not running[e]:
            return _NOT_RUNNING
    for e in range(active.size):
        if active[e] and not 0 <= actions[e] < n:
            return _NO_WORKER
    for e in range(active.size):
        waiting[e] = waiting[e] and active[e]
        chosen[e], invalid[e] = 0, False
        if active[e]:
            chosen[e] = actions[e]
            if not sim.decision.mask[e, actions[e]]:
                chosen[e], invalid[e] = _least_pending(sim, e), True
            last_pick[e] = chosen[e]
    return 0


@inlined
def _least_pending(sim: Sim, e: int) -> int:
    """The first of the eligible workers with the least pending; 0 where none is eligible."""
    now_s = sim.state.clock[e, NOW]
    features = request_of(sim, e, sim.state.counts[e, DECIDING], now_s)
    first = row(sim, e, sim.pending.balancer[e], 0)
    found, least = 0, np.inf
    for w in range(sim.sizes.workers):
        if sim.decision.mask[e, w]:
            there = _pending(sim, e, w, first + w, features, now_s)
            if there < least:
                found, least = w, there
    return found
