"""The engine decides as it always has: one digest of all policies, which holds a fault that all hosts share."""

import dataclasses
import hashlib
import math
from itertools import accumulate

import numpy as np
from simulation.builders import arrivals_of, fleet_of, model_of
from simulation.equality import run_engine
from simulation.strategies import in_sequences

from balancer.kernel.settings import EstimatorSettings, Limits, ModelSettings, Settings, TokenSettings, ZoneSettings
from policies import BUILTIN
from policies.hashing import mix
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.spec import CacheSpec, Fault, FleetSpec, NetworkSpec, Reports, SimulatedWorker

_WORKERS = tuple(
    SimulatedWorker(f"w{w}", "*f"[w % 2], 1.0 + w % 3, 1.0 + w % 2, zone="aaabbb"[w], present=w < 5) for w in range(6)
)
_FAULTS = (
    Fault("crash", "w0", 0.5, 0.25, 1.0),
    Fault("slow", "w1", 0.25, 1.0, 4.0),
    Fault("errors", "w2", 0.0, math.inf, 0.125),
    Fault("silent", "w3", 0.5, 0.5, 1.0),
    Fault("join", "w5", 0.25, 0.125, 1.0),
)
_SETTINGS = (
    Settings(sticky_keys=False, slow_start_s=0.5, estimators=EstimatorSettings(tokens=TokenSettings(4.0, 16.0, 4.0))),
    Settings(zones=ZoneSettings("a", 0.01, ("b",)), slow_start_s=0.5, stale_after_s=0.1),
    Settings(limits=Limits(6.0, 2, 3.0), max_fallbacks=3, models={"m1": ModelSettings(devices=("f",))}),
    Settings(limits=Limits(shed_late=True), estimators=EstimatorSettings(profiles={("f", "m0"): (0.004, 0.001)})),
)


def _fleet(settings: Settings, balancers: int) -> FleetSpec:
    models = model_of(0.004, 0.006, name="m0", max_batch_rows=2), model_of(0.02, name="m1", host_s=(0.002,))
    return fleet_of(
        *models,
        workers=_WORKERS,
        balancers=balancers,
        faults=_FAULTS,
        cache=CacheSpec(2, 0.5),
        retries=1,
        settings=settings,
        network=NetworkSpec(0.001, 0.001, outcome_s=0.002),
        reports=Reports(0.05, 0.004, loss=0.125),
    )


def _arrivals(seed: int, balancers: int) -> Arrivals:
    bits = [mix(mix(seed) ^ i) for i in range(400)]
    found = arrivals_of(
        list(accumulate((b >> 8) % 6 / 1024 for b in bits)),
        model=[b & 1 for b in bits],
        rows=[1 if b & 1 else 1 + (b >> 16 & 1) for b in bits],
        key=[b >> 27 & 7 if b >> 30 & 1 else 0 for b in bits],
        deadline_s=[0.05 if b >> 31 & 1 else math.inf for b in bits],
        priority=[b >> 32 & 3 for b in bits],
        balancer=[(b >> 34) % balancers for b in bits],
    )
    return in_sequences(found, [b if b >> 40 & 7 == 0 else b & ~(1 << 59) for b in bits])


def test_decisions_are_what_they_have_been() -> None:
    """To nine digits, since the last bits of logarithms are each machine's own. Who means to change decisions writes
    another digest."""
    seen = hashlib.sha256()
    for name in sorted(BUILTIN):
        for seed, settings in enumerate(_SETTINGS):
            balancers = 1 + seed % 2
            batch = Batch([_fleet(settings, balancers)], [_arrivals(seed, balancers)], [seed])
            run_engine(batch, BUILTIN[name]())
            result = batch.result()
            arrays = [result.picked, result.worker, result.status, result.latency_s, batch.sim.decision.reported_s]
            for part in ("queue", "service", "latency", "tokens", "caches"):
                arrays += [
                    getattr(getattr(batch.sim, part), f.name) for f in dataclasses.fields(getattr(batch.sim, part))
                ]
            for array in arrays:
                seen.update(",".join(f"{number:.9g}" for number in np.asarray(array).ravel().tolist()).encode())
    assert seen.hexdigest()[:16] == "7c0b01b2f0f6cdae"
