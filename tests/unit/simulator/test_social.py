"""The reference that minds others: better than who knows as much and minds only itself."""

from dataclasses import replace

import numpy as np

from policies import BUILTIN
from simulator.compare import social
from simulator.compare.metrics import measure
from simulator.run import run
from simulator.scenario import Scenario
from simulator.spec import CacheSpec, FleetSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.train.distribution import DISTRIBUTION, NETWORK, random_parts
from simulator.workload.draws import UniformKeys
from simulator.workload.workload import ModelTraffic, Workload


def scenario(speeds: tuple[float, ...], rate_per_s: float) -> Scenario:
    """One model, a second on a worker of speed 1."""
    fleet = FleetSpec(
        (ModelSpec("m", {"*": ServiceTime((1,), (1.0,))}),),
        tuple(SimulatedWorker(f"w{i}", speed=speed) for i, speed in enumerate(speeds)),
    )
    return Scenario("one", "", "train", fleet, Workload(rate_per_s, (ModelTraffic("m"),)))


def models_on_shared_devices() -> Scenario:
    """Of sizes that differ, drawn from the ranges that training draws from."""
    parts = random_parts(np.random.default_rng([13, 14]), replace(DISTRIBUTION, models=(2, 4)))
    fleet = FleetSpec(parts.models, parts.workers, network=NETWORK)
    return Scenario("random", "", "train", fleet, Workload(1.0, parts.traffic)).with_load(0.8)


def test_where_models_of_unequal_sizes_share_devices_minding_others_is_better_than_knowing_all() -> None:
    shared, seeds = models_on_shared_devices(), (0, 1)
    arrivals = [shared.arrivals(seed, 2000) for seed in seeds]
    nobody = BUILTIN["expected_latency"](delayed_share=0.0, delayed_share_other_models=0.0)
    selfish = run(shared.fleet, arrivals, nobody, seeds=seeds, knowledge="clairvoyant")
    minding = social.run_social(shared, arrivals, seeds)
    means_s = [measure(each).latency.mean_s.mean() for each in (minding, selfish)]
    assert means_s[0] < 0.8 * means_s[1]


def test_requests_that_keys_place_are_placed_by_the_router() -> None:
    plain = scenario((1.0, 1.0, 1.0), 1.5)
    keyed = replace(plain, workload=replace(plain.workload, keys=UniformKeys(1)))
    keyed = replace(keyed, fleet=replace(keyed.fleet, cache=CacheSpec(10, 0.9)))
    result = social.run_social(keyed, [keyed.arrivals(0, 50)], (0,))
    assert len(set(result.worker[0].tolist())) < 3
