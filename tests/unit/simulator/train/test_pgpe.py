"""PGPE: steps downhill where one knows the way, and runs that resume exactly."""

import dataclasses

import numpy as np
from support.two_workers import SERVICE, misled, two_workers

from simulator.pool import LocalPool, Processes
from simulator.train.pgpe import Pgpe
from simulator.train.settings import TrainingSettings

SETTINGS = TrainingSettings(iterations=12, pairs=12, requests=200, hidden=2, coefficients_share=1.0)
SMALL = dataclasses.replace(SETTINGS, pairs=3, requests=30)


def test_it_unlearns_to_prefer_the_slow_worker() -> None:
    algorithm = Pgpe(SETTINGS, two_workers(), seed=0, start=misled())
    for _ in range(SETTINGS.iterations):
        algorithm.iterate(LocalPool())
    assert algorithm.network.bias[SERVICE] > 0 > misled().bias[SERVICE]


def test_equal_seeds_give_equal_weights_whatever_the_pool() -> None:
    with Processes(2) as processes:
        vectors = []
        for pool, seed in ((LocalPool(), 1), (processes, 1), (LocalPool(), 2)):
            algorithm = Pgpe(SMALL, two_workers(), seed, misled())
            algorithm.iterate(pool)
            vectors.append(algorithm.state()["vector"])
    assert np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])


def test_it_goes_on_from_its_state_exactly() -> None:
    straight, resumed = (Pgpe(SMALL, two_workers(), 3, misled()) for _ in range(2))
    straight.iterate(LocalPool())
    resumed.restore(straight.state())
    assert resumed.iteration == 1
    for algorithm in (straight, resumed):
        algorithm.iterate(LocalPool())
    left, right = straight.state(), resumed.state()
    assert left.keys() == right.keys()
    for name in left:
        assert np.array_equal(left[name], right[name]), name
