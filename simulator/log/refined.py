"""Service times of a log's fleet by simulation: until its workers count what those of the log counted.

Workers tell how long executions of so many rows took, waiting for the device included, and how long they wait depends
on all that goes on there. So the log's own policy is simulated with the times as they are believed to be, its workers'
counters are compared with the log's, and the times corrected by the ratio; some rounds find times that explain both.
How many executions a device has at once no log tells: what fits best is taken.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from balancer.server.decision_log.recorded import DecisionLog
from policies.base import FloatArray, Policy
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.compare.metrics import WARM_UP_SHARE, measure
from simulator.log.service import Executions
from simulator.spec import DeviceSpec, FleetSpec, ModelSpec, Noise, ServiceTime, SimulatedWorker

_ROUNDS, _FEWER_ROUNDS = 16, 6
MOST_REQUESTS = 50_000
"""That need be simulated: how executions wait shows in so many."""
_CLOSE = 0.015
"""Latencies that are no farther off end the rounds."""
_SEEDS = (0, 1)
_STEP = 0.7
"""Share of what is found to be wrong, as a logarithm, that a round corrects."""
_MOST_STEP = 1.0
_SHARED = (DeviceSpec(2, 1.0), DeviceSpec(2, 0.5), DeviceSpec(4, 0.5))
"""What is tried beside one execution at a time."""
_LEAST_S = 1e-5
QUANTILES = (0.5, 0.99)

Kind = tuple[str, str]
"""A model on a kind of device."""
Fit = Callable[[FleetSpec], FleetSpec]


class Logged(NamedTuple):
    """What a simulation of the log's policy must give."""

    policy: Policy
    arrivals: Arrivals
    executions: Mapping[Kind, Executions]
    """With the seconds of a worker of speed 1."""
    quantiles_s: Mapping[str, FloatArray]
    """Latencies by model, at `QUANTILES`."""


def policy_of(log: DecisionLog) -> Policy | None:
    """The policy in force that decided most, or the hash that placed all; None where there is no decision.

    Raises `DecisionLogError` where it cannot be had.
    """
    made = Counter(decision.policy for decision in log)
    return max(made, key=lambda policy: (policy.in_force, made[policy])).build() if made else None


def quantiles_of(log: DecisionLog, arrivals: Arrivals) -> dict[str, FloatArray]:
    """Latencies by model, at `QUANTILES`, of the arrivals' time after the warm-up."""
    joined = log.joined()
    came_s = np.array([log.unix_s(decision.run, decision.at_s) for decision in log])
    begin_s, end_s = came_s.min() + arrivals.time_s[[int(len(arrivals) * WARM_UP_SHARE), -1]]
    counted = joined.ok & np.isfinite(joined.latency_s) & (came_s >= begin_s) & (came_s <= end_s)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for index in np.flatnonzero(counted):
        found[log.decisions[index].request.model].append(float(joined.latency_s[index]))
    return {model: np.quantile(latency_s, QUANTILES) for model, latency_s in found.items()}


def refine(fleet: FleetSpec, logged: Logged, measured: frozenset[Kind], with_answers: Fit) -> FleetSpec:
    """The fleet with service times, network and noise that explain the log.

    Args:
        fleet: As far as it is known.
        logged: What is to come out.
        measured: Kinds whose times are not to be touched.
        with_answers: Finds network and noise under a fleet's service times.
    """
    at_once = {worker.device: most_at_once(fleet, worker) for worker in fleet.workers}
    if max(at_once.values()) < 2 and not fleet.cache.entries:
        return fleet  # nobody waits within an execution, so what was counted is what it takes
    best, least = _rounds(fleet, logged, measured, with_answers, _ROUNDS)
    for kind in [kind for kind, most in at_once.items() if most > 1]:
        for sharing in _SHARED:
            workers = [_sharing(worker, sharing) if worker.device == kind else worker for worker in best.workers]
            tried = dataclasses.replace(best, workers=tuple(workers))
            other, off = (
                (best, np.inf) if least < _CLOSE else _rounds(tried, logged, measured, with_answers, _FEWER_ROUNDS)
            )
            if off < least:
                best, least = other, off
    return best


def most_at_once(fleet: FleetSpec, worker: SimulatedWorker) -> int:
    """Executions that a worker may have under way."""
    return sum(model.instances for model in fleet.models if fleet.may_hold(worker, model.name))


def _sharing(worker: SimulatedWorker, sharing: DeviceSpec) -> SimulatedWorker:
    return dataclasses.replace(worker, sharing=sharing)


def _rounds(
    believed: FleetSpec, logged: Logged, measured: frozenset[Kind], with_answers: Fit, rounds: int
) -> tuple[FleetSpec, float]:
    """The best of some rounds, and how far its latencies are off."""
    best, least = believed, np.inf
    for _ in range(rounds):
        counters, off = _simulated(believed, logged)
        if off < least:
            best, least = believed, off
        if off < _CLOSE or not counters:
            break
        corrected = _corrected(believed, logged, counters, measured)
        believed = _between(believed, with_answers(corrected))
    return best, least


def _simulated(fleet: FleetSpec, logged: Logged) -> tuple[Mapping[Kind, FloatArray], float]:
    """Executions and their seconds by rows, `(2, rows)`; and how far latencies are off, as a mean of logarithms."""
    batch = Batch([fleet] * len(_SEEDS), [logged.arrivals] * len(_SEEDS), _SEEDS)
    if not batch.run_inside(logged.policy):
        return {}, np.inf
    z, known = batch.sim.sizes, batch.sim.known
    executions, seconds = (
        np.asarray(array).reshape(len(_SEEDS), z.balancers, z.workers, z.models, -1)[:, 0].sum(axis=0)
        for array in (known.executions, known.seconds)
    )
    found: defaultdict[Kind, Any] = defaultdict(lambda: np.zeros((2, executions.shape[-1])))
    for w, worker in enumerate(fleet.workers):
        for m, model in enumerate(fleet.models):
            found[model.name, worker.device] += np.stack([executions[w, m], worker.speed * seconds[w, m]])
    off = []
    for name, latency in measure(batch.result()).models.items():
        if name in logged.quantiles_s:
            simulated_s = np.array([latency.p50_s.mean(), latency.p99_s.mean()])
            off.append(np.abs(np.log(simulated_s / logged.quantiles_s[name])).mean())
    return found, float(np.mean(off)) if off else np.inf


def _corrected(
    fleet: FleetSpec, logged: Logged, counters: Mapping[Kind, FloatArray], measured: frozenset[Kind]
) -> FleetSpec:
    def of_model(model: ModelSpec) -> ModelSpec:
        service = {
            kind: table
            if (model.name, kind) in measured
            else _line(table, logged.executions.get((model.name, kind)), counters.get((model.name, kind)))
            for kind, table in model.service.items()
        }
        return dataclasses.replace(model, service=service)

    return dataclasses.replace(fleet, models=tuple(map(of_model, fleet.models)))


def _line(table: ServiceTime, logged: Executions | None, simulated: FloatArray | None) -> ServiceTime:
    """Seconds once and seconds a row, least squares of relative errors over the sizes that both executed.

    A line, since large batches wait longest: with a time for each size, waiting is taken for their service.
    """
    if logged is None or simulated is None:
        return table
    sizes = [rows for rows in sorted(logged.batches) if rows < simulated.shape[1] and simulated[0, rows] > 0]
    if not sizes:
        return table
    rows = np.array(sizes, np.float64)
    believed_s = np.interp(rows, table.rows, table.device_s)
    counts = np.array([min(logged.batches[size][0], simulated[0, size]) for size in sizes])
    mean_s = np.array([logged.batches[size][1] / logged.batches[size][0] for size in sizes])
    ratio = np.log(mean_s / (simulated[1, sizes] / simulated[0, sizes]))
    wanted_s = believed_s * np.exp(_STEP * np.clip(ratio, -_MOST_STEP, _MOST_STEP))
    weights = np.sqrt(counts) / believed_s
    (once_s, row_s), _ = nnls(np.stack([weights, weights * rows], axis=1), weights * wanted_s)
    most = max(table.rows[-1], logged.max_batch_rows)
    ends = (1, most) if most > 1 else (1,)
    return ServiceTime(ends, tuple(max(float(once_s + row_s * end), _LEAST_S) for end in ends))


def _between(before: FleetSpec, after: FleetSpec) -> FleetSpec:
    """With network and noise half way between: they follow the service times, and those follow them."""
    was, found = before.network, after.network
    network = dataclasses.replace(
        found,
        to_worker_s=(was.to_worker_s + found.to_worker_s) / 2,
        to_client_s=(was.to_client_s + found.to_client_s) / 2,
        outcome_s=(was.outcome_s + found.outcome_s) / 2,
    )
    models = tuple(
        dataclasses.replace(model, noise=_mean_noise(old.noise, model.noise))
        for old, model in zip(before.models, after.models, strict=True)
    )
    return dataclasses.replace(after, network=network, models=models)


def _mean_noise(one: Noise, other: Noise) -> Noise:
    cv = ((one.cv if one.kind != "none" else 0.0) + (other.cv if other.kind != "none" else 0.0)) / 2
    return Noise("lognormal", cv) if cv > 0 else Noise()
