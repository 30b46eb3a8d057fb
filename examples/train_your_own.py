"""A router of your own: choose its inputs, train a small network on them, serve it.

To serve it: a package with the entry point `balancer.policies: mine = "my_package:Mine"`, and in the balancer's config
`policy: {name: mine, options: {file: mine.npy}}`; or `balancer simulate --policy mine:file=mine.npy`.
"""

import dataclasses
import io
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request, from_file, masked_cost, option
from simulator.run import run
from simulator.scenario import load_scenario


@dataclasses.dataclass(frozen=True, eq=False)
class Mine(Policy):
    """Softmax of expected completion and a network of three inputs with four hidden units."""

    name: ClassVar[str] = "mine"
    summary: ClassVar[str] = "Expected completion, and a network of three inputs."
    source: ClassVar[str] = "examples/train_your_own.py"
    trained: ClassVar[bool] = True  # so that the guard watches it
    file: str = option("", "Weights, as numpy.save writes them; empty: untrained", file=True)
    weights: FloatArray | None = from_file("What is in the file")

    def with_files(self, read: Callable[[str], bytes]) -> Policy:
        return dataclasses.replace(self, weights=np.load(io.BytesIO(read(self.file)))) if self.file else self

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        cost_s = masked_cost(fleet.completion_s, fleet.eligible)
        best_s = np.maximum(cost_s.min(axis=-1, keepdims=True), 1e-6)
        # An input of your own: the delay of those who wait there.
        behind = (fleet.completion_s - fleet.backlog_s) * fleet.pending
        x = np.log1p(np.stack([fleet.backlog_s, behind, fleet.service_s], axis=-1) / best_s[..., None])
        w = np.zeros(19) if self.weights is None else self.weights
        score = x @ w[:3] + np.tanh(x @ w[3:15].reshape(3, 4)) @ w[15:] - cost_s / best_s
        shares = np.exp(20.0 * (score - score.max(axis=-1, keepdims=True)))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def cost(weights: FloatArray, seeds: range) -> float:
    """Equal seeds, equal requests: common random numbers."""
    fleet = load_scenario("heterogeneous-steady")
    episodes = [fleet.arrivals(seed, 1000) for seed in seeds]
    return float(np.log(run(fleet.fleet, episodes, Mine(weights=weights), seeds=seeds).latency_s.mean()))


if __name__ == "__main__":
    generator, weights = np.random.default_rng(0), np.zeros(19)
    for step in range(20):  # parameter-exploring policy gradient: opposite changes on equal episodes
        noise, seeds = generator.normal(size=(4, 19)) * 0.2, range(8 * step, 8 * step + 8)
        weights += np.tanh([2 * (cost(weights - each, seeds) - cost(weights + each, seeds)) for each in noise]) @ noise
    np.save("mine.npy", weights)
    gain = np.exp(cost(weights, range(999, 1007)) - cost(0 * weights, range(999, 1007)))
    print(f"mean latency: {gain:.2f} of before")
