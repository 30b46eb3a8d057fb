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

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from policies.base import FloatArray
from policies.expected_latency import ExpectedLatency
from policies.learned.network import Network, shapes
from simulator.compare.metrics import counted_s
from simulator.pool import TaskPool
from simulator.result import Result
from simulator.run import run
from simulator.train.arena import Draw, Episode, Task, arena, cut
from simulator.train.settings import TrainingSettings

_LARGER = {"mix": 2.0, "bias": 4.0, "beta": 2.0}
"""Parts whose noise is a multiple of the others': coefficients of cost terms are numbers around 1."""
COEFFICIENTS = ("bias", "beta")
"""The parts that make a heuristic with fixed weights."""
MOST_DIFFERENCE = 0.4
"""Where differences of costs are cut off, so that one fleet that broke down does not set the step."""
_WARM_UP_SHARE = 0.15
_MATRICES = {"w1", "w2", "context", "mix"}


class Parts(NamedTuple):
    """What episodes cost, `(e,)` each."""

    mean: FloatArray
    """Logarithm of the mean latency."""
    tail: FloatArray
    """Logarithm of the mean latency of the slowest 2%."""
    missed: FloatArray
    """Share of the requests that failed or missed their deadlines."""


class Pgpe:
    def __init__(self, settings: TrainingSettings, draw: Draw, seed: int, start: Network) -> None:
        self.settings, self._draw, self._seed = settings, draw, seed
        self.iteration = 0
        self._start, self._vector = start, flat(start)
        self._momentum = np.zeros_like(self._vector)

    @property
    def network(self) -> Network:
        return from_flat(self._vector, self._start)

    @property
    def decisions(self) -> int:
        return 2 * self.settings.pairs * self.settings.requests

    def state(self) -> dict[str, FloatArray]:
        return {"vector": self._vector, "momentum": self._momentum, "iteration": np.array(float(self.iteration))}

    def restore(self, state: Mapping[str, FloatArray]) -> None:
        self._vector, self._momentum = state["vector"].copy(), state["momentum"].copy()
        self.iteration = int(state["iteration"])

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """One step; returns what to plot."""
        s = self.settings
        self.iteration += 1
        alone, passed = self._phase()
        deviation = s.deviation * _deviations(s.hidden, alone)
        played = partial(sampled_differences, s, self._draw, self._start, self._vector, deviation)
        found = pool.map(played, cut(s.pairs, s.tasks, self._seed, self.iteration))
        noise = np.concatenate([part for part, _ in found])
        differences = np.clip(np.concatenate([part for _, part in found]), -MOST_DIFFERENCE, MOST_DIFFERENCE)
        gradient = (differences[:, None] * noise).mean(axis=0) / max(float(differences.std()), 1e-9)
        gradient *= deviation > 0  # what is not trained has noise, and no part in the step
        self._momentum = s.momentum * self._momentum + (1 - s.momentum) * gradient
        length = max(float(np.linalg.norm(self._momentum)), 1e-9)
        step = s.step * max(0.1, 1 - passed)
        self._vector = self._vector - step * deviation * self._momentum / length
        return {"gradient": length, "cost_difference": float(differences.std()), "beta": float(self.network.beta)}

    def _phase(self) -> tuple[bool, float]:
        """Whether the coefficients move alone, and how much of the iterations that do as this one does are over."""
        s = self.settings
        first = round(s.coefficients_share * s.iterations)
        if first and self.iteration <= first:
            return True, self.iteration / first
        return False, (self.iteration - first) / max(s.iterations - first, 1)


def sampled_differences(
    settings: TrainingSettings, draw: Draw, start: Network, vector: FloatArray, deviation: FloatArray, task: Task
) -> tuple[FloatArray, FloatArray]:
    """The noise of each pair, `(pairs, d)`, and the cost with it less the cost with its opposite, `(pairs,)`."""
    pairs, seed = task
    generator = np.random.default_rng(seed)
    here = arena(draw, 2 * pairs, settings.requests)
    noise = generator.normal(size=(pairs, len(vector)))
    episodes = [here.load(e, generator, copies=2) for e in range(0, 2 * pairs, 2)]
    vectors = np.repeat(vector[None], 2 * pairs, axis=0)
    vectors[0::2] += noise * deviation
    vectors[1::2] -= noise * deviation
    cost = cost_of(here.play(from_flat(vectors, start)), episodes, settings)
    return noise, cost[0::2] - cost[1::2]


def cost_of(result: Result, episodes: Sequence[Episode], settings: TrainingSettings) -> FloatArray:
    """What each environment cost, `(e,)`: logarithms, so that a fast fleet counts as much as a slow one.

    `episodes`: those that were played, by as many environments in a row each. The slowest 2% on average is the
    conditional value at risk, which a sample tells with less noise than its p99 (Rockafellar and Uryasev 2000).
    """
    parts = parts_of(result)
    if settings.regret_weight:
        fleets, arrivals = [one.scenario.fleet for one in episodes], [one.arrivals for one in episodes]
        reference = run(fleets, arrivals, ExpectedLatency(), seeds=[one.seed for one in episodes])
        by_default = Parts(*(np.repeat(part, len(parts.mean) // len(part)) for part in parts_of(reference)))
        return weighed(parts, by_default, settings)
    return weighed(parts, parts, settings)


def weighed(parts: Parts, by_default: Parts, settings: TrainingSettings) -> FloatArray:
    """One number for what `parts_of` tells, `(e,)`: what is above the same parts by default counts again."""
    regret = np.maximum(parts.mean - by_default.mean, 0.0) + np.maximum(parts.tail - by_default.tail, 0.0)
    cost: FloatArray = parts.mean + settings.tail_weight * parts.tail + settings.deadline_weight * parts.missed
    return cost + settings.regret_weight * regret


def parts_of(result: Result) -> Parts:
    """The costs of a run; `counted_s` says how its latencies count."""
    first = int(result.latency_s.shape[1] * _WARM_UP_SHARE)
    counted, failed = [each[:, first:] for each in counted_s(result)], result.status[:, first:] != 0
    missed = ((counted[0] > result.deadline_s[:, first:]) | failed).mean(axis=1)
    means = [np.log(np.nanmean(seconds, axis=1)) for seconds in counted]
    return Parts(np.mean(means, axis=0), np.mean(list(map(_log_tail, counted)), axis=0), missed)


def _log_tail(seconds: FloatArray) -> FloatArray:
    """Of the slowest 2% of those that are a number; `(e,)`."""
    known = np.isfinite(seconds)
    slowest = max(int(known.sum(axis=1).min()) // 50, 1)
    slow_s = np.partition(np.where(known, seconds, -np.inf), -slowest, axis=1)[:, -slowest:]
    tail: FloatArray = np.log(slow_s.mean(axis=1))
    return tail


def flat(network: Network) -> FloatArray:
    """The weights in one vector `(d,)`, without the cost that they correct; of beta its logarithm, so that it stays
    above 0."""
    parts = {**network._asdict(), "beta": np.log(network.beta)}
    return np.concatenate([np.ravel(parts[name]) for name in shapes(network.b1.size)])


def from_flat(vector: FloatArray, start: Network) -> Network:
    """The network of a vector, and the start's cost; of vectors `(e, d)` one for each of `e` environments, as
    `Network.term` wants it."""
    many = vector.ndim > 1
    found: dict[str, FloatArray] = {}
    at = 0
    for name, shape in shapes(start.b1.size).items():
        size = int(np.prod(shape))
        part = vector[..., at : at + size].reshape((*vector.shape[:-1], *shape))
        found[name] = part[:, None] if many and name not in _MATRICES else part
        at += size
    found["beta"] = np.exp(found["beta"])
    return start._replace(**found)


def _deviations(hidden: int, coefficients_alone: bool) -> FloatArray:
    """Of the noise on each weight, relative to those of the hidden layers, `(d,)`; 0 where it is not trained."""
    of = {
        name: 0.0 if coefficients_alone and name not in COEFFICIENTS else _LARGER.get(name, 1.0)
        for name in shapes(hidden)
    }
    return np.concatenate([np.full(int(np.prod(shape)), of[name]) for name, shape in shapes(hidden).items()])
