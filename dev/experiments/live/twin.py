"""The simulated half: a fleet as its parts were measured, and the session through the simulator.

Nothing here looks at the session's own latencies, which are what is to be predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from balancer.config.policy_options import build_policy
from balancer.config.profile_file import Profile
from balancer.kernel.settings import Settings
from balancer.load.arrivals import FloatArray
from balancer.load.result import LoadResult
from balancer.load.workload import LoadWorkload
from balancer.stack.stack import REPOSITORY
from dev.experiments.live.session import Session
from policies.hashing import key_of
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.result import Result
from simulator.service import fit
from simulator.spec import BatchingSpec, CacheSpec, FleetSpec, ModelSpec, NetworkSpec, Noise, Reports, SimulatedWorker

_REPORT_HZ = 50.0
"""Of an agent while requests flow."""
_REPORT_DELAY_S = 0.002
"""To read Triton's metrics page, and to send the report."""
_FLUSH_S = 0.005
"""For which Envoy gathers outcomes, as its bootstrap says."""
_LOG_DELAY_S = 0.001
"""An outcome's way from Envoy to the balancer, beside waiting for the next flush."""
_WAY_THERE = 1 / 3
"""Of a request's overhead: what comes between the pick and the worker's queue. The rest is before the pick (client,
Envoy, the call to the balancer) and after the execution."""


def fleet(
    profiles: Mapping[str, Profile],
    easy: LoadResult,
    models: Sequence[str],
    weights: Mapping[str, float] | None = None,
    session: Session | None = None,
) -> FleetSpec:
    """The demo's fleet.

    Args:
        profiles: Of each worker, by name.
        easy: Requests of which none waited, for what a request takes beyond its execution.
        models: In the order that the fleet is to have.
        weights: Of each worker, by name; None: all 1.
        session: Tells what keys save; None: nothing.
    """
    specs = tuple(_model(name, list(profiles.values())) for name in models)
    weights = weights or dict.fromkeys(profiles, 1.0)
    workers = tuple(SimulatedWorker(name, profile.device, weight=weights[name]) for name, profile in profiles.items())
    reports = Reports(1 / _REPORT_HZ, _REPORT_DELAY_S)
    # One waits half an interval for the next flush, in the mean.
    network = NetworkSpec(outcome_s=_FLUSH_S / 2 + _LOG_DELAY_S)
    cache, settings = CacheSpec(), Settings()
    if session is not None and session.sessions:
        cache, settings = CacheSpec(session.cache_keys, session.cache_saving), Settings(sticky_keys=False)
    without = FleetSpec(specs, workers, reports=reports, network=network, cache=cache, settings=settings)
    fixed_s, jitter_s = exponential_fit(surplus_s(easy, without))
    there_s = _WAY_THERE * fixed_s
    network = replace(network, to_worker_s=there_s, to_client_s=fixed_s - there_s, jitter_s=jitter_s)
    return replace(without, network=network)


def _model(name: str, profiles: Sequence[Profile]) -> ModelSpec:
    """A model as `config.pbtxt` has it, with the service times of each worker's device."""
    path = REPOSITORY / "triton" / "models" / name / "config.pbtxt"
    config = text_format.Parse(path.read_text(), ModelConfig())
    points = {p.device: next(model.points for model in p.models if model.model == name) for p in profiles}
    variations = [point.std_s / point.mean_s for one in points.values() for point in one if point.std_s is not None]
    return ModelSpec(
        name,
        # Where the GPU's lock is held cannot be told from outside; nearly all of an execution it is.
        {device: fit([p.rows for p in one], [p.mean_s for p in one]) for device, one in points.items()},
        Noise("lognormal", float(np.median(variations))),
        BatchingSpec(config.max_batch_size, config.dynamic_batching.max_queue_delay_microseconds * 1e-6),
        instances=sum(group.count for group in config.instance_group),
    )


def surplus_s(easy: LoadResult, fleet: FleetSpec) -> FloatArray:
    """What each request took beyond its execution and its batcher's delay, if nobody was ahead of it; `(k,)`."""
    models = {model.name: model for model in fleet.models}
    devices = {worker.name: worker.device for worker in fleet.workers}
    expected_s = np.empty(len(easy))
    for i, (model, rows, worker) in enumerate(zip(easy.model, easy.rows, easy.worker, strict=True)):
        spec = models[easy.models[model]]
        service = spec.service[devices[easy.workers[worker]]]
        waits_s = spec.batching.queue_delay_s if rows < spec.batching.max_batch_rows else 0.0
        expected_s[i] = np.interp(rows, service.rows, service.device_s) + waits_s
    return easy.latency_s - expected_s


def exponential_fit(sample_s: FloatArray) -> tuple[float, float]:
    """Constant and mean of the exponential on top that have the sample's median and 90th percentile."""
    median_s, high_s = np.quantile(sample_s, [0.5, 0.9])
    mean_s = float(high_s - median_s) / math.log(5)
    return max(float(median_s) - math.log(2) * mean_s, 0.0), mean_s


def arrivals(workload: LoadWorkload) -> Arrivals:
    """The same requests as the simulator takes them, whose models are in the workload's order."""
    count = len(workload)
    return Arrivals(
        time_s=workload.time_s,
        model=workload.model.astype(np.int16),
        rows=workload.rows.astype(np.int32),
        work=np.ones(count),
        key=np.array([key_of(key) for key in workload.keys] or [0] * count, np.uint64),
        deadline_s=workload.deadline_s,
        priority=np.zeros(count, np.int16),
        balancer=np.zeros(count, np.int16),
        tenant=np.zeros(count, np.int16),
    )


def simulate(fleet: FleetSpec, session: Session, seeds: Sequence[int]) -> Result:
    """The session, once for each seed: policies take their turns in one fleet, whose estimators go on learning."""
    one = arrivals(session.workload())
    batch = Batch([fleet] * len(seeds), [one] * len(seeds), seeds)
    policies = {name: build_policy(name, session.options(name)) for name in session.policies}
    decides = [policies[turn.policy] for turn in session.turns()]
    batch.start()
    # In an open loop every request is decided, in its order, at the same step in all environments.
    for turn in session.turn_of_requests():
        batch.step(batch.draw(batch.probabilities(decides[turn])))
    return batch.result()
