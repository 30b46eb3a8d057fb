"""Which inputs the policy met in training: what the guard holds against those that it meets in production."""

from __future__ import annotations

from functools import partial

import numpy as np

from policies.base import FloatArray
from policies.learned.features import FEATURES, Inputs
from policies.learned.network import Network
from simulator.batch import Batch
from simulator.train.arena import Draw, arena
from simulator.train.pool import TaskPool, parts_of
from simulator.view import BatchView

OUTERMOST = 1e-5
"""Share of the values that is left out at each end. A look at a fleet shows some 200 values: with a thousandth left
out, one look in five would be strange to a policy in the very fleets that it was trained on."""
_START_UP = 20
"""Decisions of each episode that are all looked at: the fleet is empty, and no report has come."""
_EVERY = 32
"""Of those after, one in so many."""
_TASKS = 4
_MOST = np.array([feature.most for feature in FEATURES])
_SEED = 1 << 31
"""Where training has the iteration: these are other episodes of the same kind."""


def ranges(
    network: Network, draw: Draw, seed: int, episodes: int, requests: int, pool: TaskPool
) -> tuple[FloatArray, FloatArray]:
    """Lowest and highest value of each input but for `OUTERMOST`, `(f,)` each, in episodes that the network plays; of
    an input that is a share, 0 and 1."""
    tasks = [(count, (seed, _SEED, part)) for part, count in enumerate(parts_of(episodes, _TASKS))]
    values = np.concatenate(pool.map(partial(_seen, network, draw, requests), tasks))
    lowest, highest = np.quantile(values, [OUTERMOST, 1 - OUTERMOST], axis=0)
    # No share is strange: a worker that fails more than any in training is the less to be picked, by the cost itself,
    # and to fall back on the baseline, which sees the same errors, would help nobody.
    shares = np.array([feature.unit == "share" for feature in FEATURES])
    lowest[shares], highest[shares] = 0.0, np.log1p(_MOST[shares])
    return lowest, highest


def _seen(network: Network, draw: Draw, requests: int, task: tuple[int, tuple[int, ...]]) -> FloatArray:
    """Inputs of eligible workers, `(k, f)`; the task: so many episodes, from a seed."""
    episodes, seed = task
    here = arena(draw, episodes, requests)
    generator = np.random.default_rng(seed)
    for e in range(episodes):
        here.load(e, generator)
    found: list[FloatArray] = []
    step = 0

    def see(batch: Batch, view: BatchView, given: Inputs, probabilities: FloatArray) -> None:
        nonlocal step
        if step < _START_UP or step % _EVERY == 0:
            found.append(given.features[view.eligible & batch.waiting[:, None]])
        step += 1

    here.play(network, see)
    return np.concatenate(found)
