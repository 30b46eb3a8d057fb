"""A fleet in which everybody knows what is right, to train on: a slow worker and one that is four times as fast."""

import numpy as np

from policies.learned.features import TERMS
from policies.learned.network import Network, untrained
from simulator.scenario import Scenario
from simulator.spec import BatchingSpec, FleetSpec, ModelSpec, Noise, Reports, ServiceTime, SimulatedWorker
from simulator.train.scenarios import Randomised
from simulator.workload.draws import ONE
from simulator.workload.times import Poisson
from simulator.workload.workload import ModelTraffic, Workload

SERVICE = [term.name for term in TERMS].index("service")
"""The coefficient that misleads `misled`."""


def two_workers() -> Randomised:
    """Draws always this one fleet; no batches, so a request's work is what it is wherever others are."""
    model = ModelSpec(
        "m", {"*": ServiceTime((1,), (0.04,))}, noise=Noise("none"), batching=BatchingSpec(max_batch_rows=1)
    )
    workers = (SimulatedWorker("slow", speed=1.0), SimulatedWorker("fast", speed=4.0))
    fleet = FleetSpec((model,), workers, reports=Reports(period_s=0.02, delay_s=0.001))
    traffic = (ModelTraffic("m", 1.0, ONE, ONE, 0.2),)
    scenario = Scenario("two-workers", "", "train", fleet, Workload(1.0, traffic, Poisson())).with_load(0.6)
    return Randomised((scenario,), random_share=0.0, load=(1.0, 1.0))


def misled() -> Network:
    """A network that is drawn to the slow worker: it takes a long service for a merit."""
    bias = np.zeros(len(TERMS))
    bias[SERVICE] = -1.5
    return untrained(2, 5.0)._replace(bias=bias)
