"""Policy gradients with parameter-based exploration: the gradient from whole episodes under perturbed weights.

Each environment of a pair plays the same episode (fleet, arrivals, seeds of all else: common random numbers), one with
the weights moved by +noise, the other by -noise. The difference of their costs, times the noise, is a sample of the
gradient of the expected cost over the noise, unbiased but where large differences are cut off (`MOST_DIFFERENCE`); what
both suffer alike cancels. So there is no credit to assign
among thousands of decisions, no critic, no discount; and a cost may be what one really wants to know of a run, its tail
included, that is no sum over decisions.

Source: Sehnke et al. 2010, Parameter-exploring policy gradients, Neural Networks 23; symmetric sampling as there.
The step is the gradient with momentum, brought to a fixed length in units of the exploration's deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from balancer.files.schema import CHECKED, Count, Fraction, Positive
from policies.base import FloatArray
from policies.expected_latency import ExpectedLatency
from policies.learned.network import Network
from simulator.result import Result
from simulator.run import run
from simulator.train.arena import CostWeights, Draw, Episode, arena, episodes_cost
from simulator.train.pool import TaskPool, parts_of
from simulator.train.weights import flat, from_flat, initial, scale_by_part


@pydantic_dataclass(config=CHECKED, frozen=True, slots=True)
class PgpeSettings:
    """How it explores and steps."""

    iterations: Count = 60
    """After which it is done."""
    coefficients_share: Fraction = 0.4
    """Of the iterations, the first, which move nothing but beta and the constant coefficients of the cost terms: seven
    numbers are found sooner than some hundred, and the rest then starts from the best heuristic of this form."""
    pairs: Count = 128
    """Episodes of an iteration, each played twice."""
    requests: Count = 2000
    """Of an episode."""
    hidden: Count = 8
    beta: Positive = 20.0
    """At the start."""
    deviation: Positive = 0.1
    """Of the noise on weights of the hidden layers."""
    step: Positive = 2.0
    """Length of the first steps, in deviations; they shrink linearly to a tenth, and so again once all weights move."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.8
    cost: CostWeights = CostWeights()
    tasks: Count = 4
    """Into which an iteration is cut, at most as many as pairs: no more processes than that have work. Fewer are
    cheaper, since what NumPy takes for a decision of 64 episodes is less than twice that for 32."""


_LARGER = {"mix": 2.0, "bias": 4.0, "beta": 2.0}
"""Parts whose noise is a multiple of the others': coefficients of cost terms are numbers around 1."""
COEFFICIENTS = ("bias", "beta")
"""The parts that make a heuristic with fixed weights."""
MOST_DIFFERENCE = 0.4
"""Where differences of costs are cut off, so that one fleet that broke down does not set the step."""


class Pgpe:
    """The algorithm: state, and one iteration after the other. See `trainer.Algorithm`."""

    sampled: Callable[[PgpeTask], tuple[FloatArray, FloatArray]]
    """Plays a task: the noise of each pair, `(pairs, d)`, and the difference of their costs, `(pairs,)`."""

    def __init__(self, settings: PgpeSettings, draw: Draw, seed: int, start: Network | None = None) -> None:
        """`start`: where to begin, of as many hidden units as the settings say; None: random, from the seed."""
        self.settings, self._draw, self._seed = settings, draw, seed
        self.iteration = 0
        self.sampled = sampled_differences
        self._vector = self._begin(np.random.default_rng((seed, 0))) if start is None else flat(start)
        self._momentum = np.zeros_like(self._vector)

    @property
    def network(self) -> Network:
        """At present."""
        return from_flat(self._vector, self.settings.hidden)

    @property
    def decisions(self) -> int:
        """Of one iteration."""
        return 2 * self.settings.pairs * self.settings.requests

    def state(self) -> dict[str, FloatArray]:
        """All that the next iterations depend on, beside settings and seed."""
        return {"vector": self._vector, "momentum": self._momentum, "iteration": np.array(float(self.iteration))}

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Go on from a state."""
        self._vector, self._momentum = state["vector"].copy(), state["momentum"].copy()
        self.iteration = int(state["iteration"])

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """One step; returns what to plot."""
        s = self.settings
        self.iteration += 1
        found = pool.map(self.sampled, list(self.tasks()))
        noise = np.concatenate([part for part, _ in found])
        differences = np.clip(np.concatenate([part for _, part in found]), -MOST_DIFFERENCE, MOST_DIFFERENCE)
        gradient = (differences[:, None] * noise).mean(axis=0) / max(float(differences.std()), 1e-9)
        deviation = self._deviation
        gradient *= deviation > 0  # what is not trained has noise, and no part in the step
        self._momentum = s.momentum * self._momentum + (1 - s.momentum) * gradient
        length = max(float(np.linalg.norm(self._momentum)), 1e-9)
        step = s.step * max(0.1, 1 - self._phase()[1])
        self._vector = self._vector - step * deviation * self._momentum / length
        return {"gradient": length, "cost_difference": float(differences.std()), "beta": float(self.network.beta)}

    def _phase(self) -> tuple[bool, float]:
        """Whether the coefficients move alone, and how much of the iterations that do as this one does are over."""
        s = self.settings
        first = round(s.coefficients_share * s.iterations)
        if first and self.iteration <= first:
            return True, self.iteration / first
        return False, (self.iteration - first) / max(s.iterations - first, 1)

    @property
    def _deviation(self) -> FloatArray:
        """Of the noise on each weight in the present iteration, `(d,)`; 0 where it is not trained."""
        of = _LARGER
        if self._phase()[0]:
            of = {name: _LARGER[name] if name in COEFFICIENTS else 0.0 for name in Network._fields}
        return self.settings.deviation * scale_by_part(self.settings.hidden, of)

    def _begin(self, generator: np.random.Generator) -> FloatArray:
        return flat(initial(generator, self.settings.hidden, self.settings.beta))

    def tasks(self) -> Iterator[PgpeTask]:
        """What the present iteration plays."""
        # As many tasks whatever the pool, so that the result does not depend on how many processes there are.
        for part, pairs in enumerate(parts_of(self.settings.pairs, self.settings.tasks)):
            seed = (self._seed, self.iteration, part)
            yield PgpeTask(self.settings, self._draw, self._vector, self._deviation, pairs, seed)


@dataclass(frozen=True, slots=True)
class PgpeTask:
    """Pairs of episodes to play."""

    settings: PgpeSettings
    draw: Draw
    vector: FloatArray
    deviation: FloatArray
    pairs: int
    seed: tuple[int, ...]


def sampled_differences(task: PgpeTask) -> tuple[FloatArray, FloatArray]:
    """The noise of each pair, `(pairs, d)`, and the cost with it less the cost with its opposite, `(pairs,)`."""
    s, generator = task.settings, np.random.default_rng(task.seed)
    here = arena(task.draw, 2 * task.pairs, s.requests)
    noise = generator.normal(size=(task.pairs, len(task.vector)))
    episodes = [here.load(e, generator, copies=2) for e in range(0, 2 * task.pairs, 2)]
    vectors = np.repeat(task.vector[None], 2 * task.pairs, axis=0)
    vectors[0::2] += noise * task.deviation
    vectors[1::2] -= noise * task.deviation
    cost = cost_of(here.play(from_flat(vectors, s.hidden)), episodes, s.cost)
    return noise, cost[0::2] - cost[1::2]


def cost_of(result: Result, episodes: Sequence[Episode], weights: CostWeights) -> FloatArray:
    """What each environment cost, `(e,)`; `episodes`: those that were played, by as many environments in a row each."""
    reference = None
    if weights.regret:
        fleets, arrivals = [one.scenario.fleet for one in episodes], [one.arrivals for one in episodes]
        reference = run(fleets, arrivals, ExpectedLatency(), seeds=[one.seed for one in episodes])
    return episodes_cost(result, weights, reference)
