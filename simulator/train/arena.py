"""Where policies are tried: episodes side by side, each from an empty fleet until its last request is answered.

An episode is a pure function of networks, scenario and seed; nothing lives on from one to the next. So training can be
resumed exactly, spread over processes or machines, and compared on common random numbers.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from policies.base import FloatArray
from policies.learned.features import Inputs, inputs
from policies.learned.network import Network
from policies.learned.policy import shares
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.engine.allocate import TooLargeError
from simulator.envs.sampling import covering, room_for_prompts
from simulator.result import Result
from simulator.scenario import Scenario
from simulator.view import BatchView

Draw = Callable[[np.random.Generator], Scenario]
Task = tuple[int, tuple[int, ...]]
"""So many episodes, from a seed."""
_LOOKED_AT = 300
_DRAWS = 100


@dataclass(frozen=True, slots=True)
class Episode:
    scenario: Scenario
    arrivals: Arrivals
    seed: int


class Arena:
    """Room for `environments` episodes of `requests` requests, of any scenario that `draw` returns."""

    def __init__(self, draw: Draw, environments: int, requests: int) -> None:
        """Allocate; the first draws tell how large fleets are, and larger ones are drawn again."""
        generator = np.random.default_rng(0)
        looked_at = [draw(generator) for _ in range(_LOOKED_AT)]
        room, prompts = covering([one.fleet for one in looked_at]), room_for_prompts(looked_at, requests)
        self.batch = Batch.of_room(room, environments, requests, prompts)
        self.environments, self.requests = environments, requests
        self._draw = draw

    def load(self, first: int, generator: np.random.Generator, copies: int = 1) -> Episode:
        """Draw an episode and put it into environments `first` to `first + copies - 1`, at its first decision."""
        for _ in range(_DRAWS):
            scenario, seed = self._draw(generator), int(generator.integers(1 << 31))
            arrivals = scenario.arrivals(seed, self.requests)
            try:
                for e in range(first, first + copies):
                    self.batch.load(e, scenario.fleet, arrivals, seed)
            except TooLargeError:  # larger than all that were looked at: rare, and others are as good
                continue
            if self.batch.waiting[first]:
                return Episode(scenario, arrivals, seed)
        raise ValueError("no scenario fits: most draws are larger than the first ones; make their sizes alike")

    def play(
        self,
        networks: Network,
        seen: Callable[[Batch, BatchView, Inputs, FloatArray], None] = lambda *shown: None,
    ) -> Result:
        """Route all that is loaded by one network, or one for each environment; `seen` is shown each decision."""
        batch = self.batch
        while batch.waiting.any():
            view = batch.view()
            given = inputs(batch.request(), view, networks.numbers, networks.tolls)
            probabilities = shares(networks, given, view)
            seen(batch, view, given, probabilities)
            batch.step(batch.draw(probabilities))
        return batch.result()


def arena(draw: Draw, environments: int, requests: int) -> Arena:
    """One that is kept for the next call with equal arguments, since allocation takes its time."""
    return _arena(pickle.dumps((draw, environments, requests)))


@lru_cache(maxsize=2)  # tasks of one iteration have two sizes at most
def _arena(pickled: bytes) -> Arena:
    return Arena(*pickle.loads(pickled))


def cut(episodes: int, tasks: int, *seed: int) -> list[Task]:
    """The episodes in at most `tasks` tasks of about equal size: as many whatever the pool, so that the result does not
    depend on how many processes there are."""
    count = min(tasks, episodes)
    sizes = [episodes * (part + 1) // count - episodes * part // count for part in range(count)]
    return [(size, (*seed, part)) for part, size in enumerate(sizes)]
