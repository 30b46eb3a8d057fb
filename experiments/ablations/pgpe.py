"""`simulator.training.pgpe` with something taken away, from the policy or from how it is trained."""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np

from experiments.ablations.fixed_size import fixed_from_flat, fixed_initial
from experiments.ablations.switches import Ablation, Look
from policies.base import FloatArray
from policies.learned.network import Network
from simulator.training.arena import Draw, arena
from simulator.training.pgpe import Pgpe, PgpeSettings, Task, cost_of
from simulator.training.weights import from_flat


class AblatedPgpe(Pgpe):
    """The algorithm, but for what the ablation takes away."""

    def __init__(self, settings: PgpeSettings, draw: Draw, seed: int, ablation: Ablation) -> None:
        self._ablation = ablation
        super().__init__(settings, draw, seed)
        self.sampled = partial(sampled_differences, ablation)

    @property
    def network(self) -> Network:
        """At present."""
        return _network(self._ablation, self._vector, self.settings.hidden)

    @property
    def _deviation(self) -> FloatArray:
        """See `Pgpe`; a network of fixed size has no coefficients."""
        if self._ablation.fixed_workers:
            return np.full(len(self._vector), self.settings.deviation)
        return super()._deviation

    def _begin(self, generator: np.random.Generator) -> FloatArray:
        s, workers = self.settings, self._ablation.fixed_workers
        return fixed_initial(generator, s.hidden, workers, s.beta) if workers else super()._begin(generator)


def _network(ablation: Ablation, vector: FloatArray, hidden: int) -> Network:
    if ablation.fixed_workers:  # has all that playing needs
        return cast(Network, fixed_from_flat(vector, hidden, ablation.fixed_workers))
    return from_flat(vector, hidden)


def sampled_differences(ablation: Ablation, task: Task) -> tuple[FloatArray, FloatArray]:
    """As `simulator.training.pgpe.sampled_differences`."""
    s, generator = task.settings, np.random.default_rng(task.seed)
    here = arena(task.draw, 2 * task.pairs, s.requests)
    noise = generator.normal(size=(task.pairs, len(task.vector)))
    copies = 2 if ablation.common_random_numbers else 1
    episodes = [here.load(e, generator, copies=copies) for e in range(0, 2 * task.pairs, copies)]
    vectors = np.repeat(task.vector[None], 2 * task.pairs, axis=0)
    vectors[0::2] += noise * task.deviation
    if ablation.symmetric:
        vectors[1::2] -= noise * task.deviation
    result = here.play(_network(ablation, vectors, s.hidden), look=Look(ablation))
    cost = cost_of(result, episodes, s.cost)
    return noise, cost[0::2] - cost[1::2]
