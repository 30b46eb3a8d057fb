"""CMA-ES on the numbers of `expected_latency`: no network, no gradient.

A generation's candidates all play the same episodes (common random numbers), and what each costs is the same as in
PGPE. Source: Hansen 2016, The CMA evolution strategy: a tutorial, arXiv:1604.00772; by the library cmaes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cmaes import CMA

from experiments.optimizers.options import coordinates_of, policy_at
from policies.base import FloatArray
from policies.expected_latency import ExpectedLatency
from simulator.arrivals import Arrivals
from simulator.run import run
from simulator.spec import FleetSpec
from simulator.training.arena import CostWeights, Draw, episodes_cost
from simulator.training.pgpe import MOST_DIFFERENCE
from simulator.training.pool import Pool

_BEYOND = 0.25
"""How far coordinates may go beyond 0 and 1, where nothing changes any more: so that a bound is found exactly."""


@dataclass(frozen=True, slots=True)
class CmaEsSettings:
    """How it searches."""

    iterations: int = 20
    """Generations."""
    population: int = 12
    """Candidates of a generation; the library's default for six numbers is 9, and costs are noisy."""
    episodes: int = 8
    """That all candidates of a generation play."""
    requests: int = 2000
    """Of an episode."""
    deviation: float = 0.15
    """Of the first candidates, in coordinates."""
    cost: CostWeights = field(default_factory=CostWeights)


class CmaEs:
    """The algorithm: state, and one generation after the other; as `trainer.Algorithm`, but without a network."""

    def __init__(self, settings: CmaEsSettings, draw: Draw, seed: int, start: ExpectedLatency | None = None) -> None:
        """`start`: where to begin; None: at the defaults."""
        self._start = coordinates_of(start or ExpectedLatency())
        self.settings, self._draw, self._seed = settings, draw, seed
        self._told: list[FloatArray] = []
        self._search = self._begin()

    def _begin(self) -> CMA:
        return CMA(
            mean=self._start,
            sigma=self.settings.deviation,
            bounds=np.tile([-_BEYOND, 1 + _BEYOND], (len(self._start), 1)),
            seed=self._seed,
            population_size=self.settings.population,
        )

    @property
    def iteration(self) -> int:
        """How many generations are done."""
        return len(self._told)

    @property
    def decisions(self) -> int:
        """Of one generation."""
        return self.settings.population * self.settings.episodes * self.settings.requests

    @property
    def policy(self) -> ExpectedLatency:
        """At the middle of the present candidates: with noise the best of them is mostly the luckiest."""
        return policy_at(self._search.mean)

    def state(self) -> dict[str, FloatArray]:
        """What each generation was told: with the seed, all that the next ones depend on."""
        return {"told": np.array(self._told).reshape(-1, self.settings.population)}

    def restore(self, state: Mapping[str, FloatArray]) -> None:
        """Go on from a state: candidates are drawn and told of again, and not played."""
        self._told, self._search = [], self._begin()
        for costs in state["told"]:
            self._tell(self._ask(), costs)

    def iterate(self, pool: Pool) -> dict[str, float]:
        """One generation; returns what to plot."""
        candidates = self._ask()
        costs = self._costs([policy_at(each) for each in candidates])
        self._tell(candidates, costs)
        return {"cost": float(costs.min()), "spread": float(costs.std())}

    def _ask(self) -> list[FloatArray]:
        return [self._search.ask() for _ in range(self.settings.population)]

    def _tell(self, candidates: Sequence[FloatArray], costs: FloatArray) -> None:
        self._told.append(np.array(costs))
        self._search.tell([(x, float(cost)) for x, cost in zip(candidates, costs, strict=True)])

    def _costs(self, policies: Sequence[ExpectedLatency]) -> FloatArray:
        """Of each candidate on the episodes of the present generation."""
        generator = np.random.default_rng((self._seed, self.iteration))
        fleets: list[FleetSpec] = []
        arrivals: list[Arrivals] = []
        seeds: list[int] = []
        for _ in range(self.settings.episodes):
            scenario, seed = self._draw(generator), int(generator.integers(1 << 31))
            fleets.append(scenario.fleet)
            arrivals.append(scenario.arrivals(seed, self.settings.requests))
            seeds.append(seed)
        weights = self.settings.cost
        reference = run(fleets, arrivals, ExpectedLatency(), seeds=seeds)
        usual = episodes_cost(reference, weights)
        found = [episodes_cost(run(fleets, arrivals, each, seeds=seeds), weights, reference) for each in policies]
        # Cut off as PGPE does, so that one fleet that broke down does not rank all candidates.
        mean: FloatArray = np.clip(np.array(found) - usual, -MOST_DIFFERENCE, MOST_DIFFERENCE).mean(axis=1)
        return mean
