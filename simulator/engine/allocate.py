"""From what is simulated to the engine's arrays: allocated once for the largest environment, then filled for each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from balancer.core import latency, queue, service, tokens
from policies.hashing import key_of, mix
from simulator.arrivals import Arrivals
from simulator.engine import layout as at
from simulator.engine.compiled import LatencyArrays, QueueArrays, ServiceArrays, TokenArrays
from simulator.engine.layout import Asked, Demand, Heap, Known, Plan, Sim, Sizes, State
from simulator.engine.tables import service_table
from simulator.result import Status
from simulator.spec import FleetSpec, ModelSpec, ServiceTime, WorkerSpec

_LEAST_LOG, _MOST_LOG = 128, 4096
_EXECUTIONS_PER_S = 2000.0
"""That a log has room for until a balancer has heard of them; more are learned of a little early."""
_WARM = 1 << 40
"""Executions that a worker is taken to have started when it is there from the start."""
_PREFERRED = 8
_ESTIMATORS: dict[type[Any], str] = {
    queue.Queue: "queue",
    service.Service: "service",
    latency.Latency: "latency",
    tokens.Tokens: "tokens",
}
_KEPT_S = 0.15
"""Seconds of samples over which an agent averages what executes."""


def sizes(fleets: Sequence[FleetSpec], requests: int) -> Sizes:
    """The largest of everything."""
    return Sizes(
        workers=max(len(fleet.workers) for fleet in fleets),
        models=max(len(fleet.models) for fleet in fleets),
        balancers=max(fleet.balancers for fleet in fleets),
        requests=requests,
        slots=max(sum(model.instances for model in fleet.models) for fleet in fleets),
        levels=max(model.batching.priority_levels for fleet in fleets for model in fleet.models),
        log=max(_log(fleet) for fleet in fleets),
        snapshots=max(_snapshots(fleet) for fleet in fleets),
    )


def _snapshots(fleet: FleetSpec) -> int:
    """Reports that may be on their way at once, with 20 mean delays of jitter."""
    reports = fleet.reports
    on_the_way = math.ceil((reports.delay_s + 20 * reports.jitter_s) / reports.period_s) + len(fleet.faults)
    return int(min(4 + on_the_way, 1024))


def _log(fleet: FleetSpec) -> int:
    """A power of two."""
    reports = fleet.reports
    executions = _EXECUTIONS_PER_S * (reports.period_s + reports.delay_s + 20 * reports.jitter_s)
    return int(min(max(2 ** math.ceil(math.log2(executions)), _LEAST_LOG), _MOST_LOG))


def _samples(fleet: FleetSpec) -> int:
    return max(1, math.ceil(_KEPT_S / fleet.reports.period_s))


_TOGETHER = ("e k", "g log")
Fields = dict[str, tuple[str, type, Any]]
# Of each array: its axes (see `_lengths`), type, and value at the start of a run where that is not 0. The first axis
# tells which part belongs to one environment.
_PLAN: Fields = {
    "env": ("e env", float, 0),
    "model": ("em model", float, 0),
    "preferred": ("em preferred", int, 0),
    "worker": ("g worker", float, 1),
    "table": ("g m", int, -1),
    "instances": ("g m", int, 0),
    "device_s": ("tables rows", float, 0),
    "host_s": ("tables rows", float, 0),
    "fault_kind": ("e faults", int, 0),
    "fault_worker": ("e faults", int, 0),
    "fault_at_s": ("e faults", float, 0),
    "fault_until_s": ("e faults", float, 0),
    "fault_amount": ("e faults", float, 0),
    "weight": ("e n", float, 1),
    "name_hash": ("e n", np.uint64, 0),
    "seed": ("e", np.uint64, 0),
    "router_seed": ("e b", np.uint64, 0),
}
_DEMAND: Fields = {
    "time_s": ("e k", float, 0),
    "model": ("e k", np.int16, 0),
    "rows": ("e k", np.int32, 1),
    "work": ("e k", float, 1),
    "key": ("e k", np.uint64, 0),
    "deadline_s": ("e k", float, np.inf),
    "priority": ("e k", np.int16, 0),
    "balancer": ("e k", np.int16, 0),
}
_STATE: Fields = {
    "clock": ("e clock", float, 0),
    "counts": ("e count", int, 0),
    "real": ("g real", float, 0),
    "whole": ("g whole", int, 0),
    "slot_state": ("g slots", np.int8, at.FREE),
    "slot_model": ("g slots", int, 0),
    "slot_rows": ("g slots", int, 0),
    "slot_head": ("g slots", int, 0),
    "slot_order": ("g slots", int, 0),
    "slot_start_s": ("g slots", float, 0),
    "slot_ready_s": ("g slots", float, 0),
    "slot_left_s": ("g slots", float, 0),
    "queue_head": ("g m levels", int, 0),
    "queue_tail": ("g m levels", int, 0),
    "queue_count": ("g m levels", int, 0),
    "queued": ("g m", int, 0),
    "executing": ("g m", int, 0),
    "busy_instances": ("g m", int, 0),
    "coming_rows": ("g m", float, 0),
    "coming_work": ("g m", float, 0),
    "timer_s": ("g m", float, np.inf),
    "cache": ("g entries", np.uint64, 0),
    "compute_s": ("g m", float, 0),
    "sample_s": ("g samples", float, 0),
    "sample_compute_s": ("g samples m", float, 0),
    "log_model": ("g log", np.int16, 0),
    "log_rows": ("g log", np.int32, 0),
    "log_s": ("g log", float, 0),
    "snapshot": ("g snapshots four", int, 0),
    "snapshot_pending": ("g snapshots m", float, 0),
    "snapshot_executing": ("g snapshots m", float, 0),
    "next": ("e k", np.int32, -1),
    "arrived_s": ("e k", float, 0),
    "sent_s": ("e k", float, 0),
    "queued_s": ("e k", float, 0),
    "resolved_s": ("e k", float, np.nan),
    "status": ("e k", np.int8, Status.UNFINISHED),
    "server": ("e k", np.int16, -1),
    "picked": ("e k", np.int16, -1),
    "attempts": ("e k", np.int8, 0),
    "fallback": ("e k fallbacks", np.int16, -1),
    "timeline": ("e t n", float, 0),
    "scratch": ("e n", float, 0),
    "mask": ("e n", np.bool_, False),
}
_ASKED: Fields = {
    "model": ("e", int, 0),
    "balancer": ("e", int, 0),
    "rows": ("e", float, 1),
    "key": ("e", np.uint64, 0),
    "deadline_s": ("e", float, np.inf),
    "priority": ("e", float, 0),
    "number": ("e", np.uint64, 0),
    "uniform": ("e", float, 0),
    "now_s": ("e", float, 0),
}
_HEAP: Fields = {
    "at_s": ("e heap", float, 0),
    "payload": ("e heap", int, 0),
    "size": ("e", int, 0),
    "lasting": ("e", int, 0),
}
_KNOWN: Fields = {
    "number": ("e b", int, 0),
    "fresh_until_s": ("e b", float, -np.inf),
    "eligible": ("ebm n", np.bool_, False),
    "eligible_count": ("ebm", int, 0),
    "reported_s": ("r", float, -np.inf),
    "added": ("r", np.bool_, False),
    "draining": ("r", np.bool_, False),
    "ready": ("r", np.bool_, False),
    "report_number": ("r", int, -1),
    "incarnation": ("r", int, -1),
    "position": ("r", int, 0),
    "executions": ("r m rows", float, 0),
    "seconds": ("r m rows", float, 0),
    "executions_seen": ("r m rows", float, 0),
    "seconds_seen": ("r m rows", float, 0),
    "executions_all": ("r m", float, 0),
}


def _lengths(z: Sizes, fleets: Sequence[FleetSpec], timeline: int) -> dict[str, int]:
    e, n, m, b = len(fleets), z.workers, z.models, z.balancers
    faults = max(len(fleet.faults) for fleet in fleets)
    events = 2 * z.requests + n * (z.slots + m + 4 + b * z.snapshots) + 4 * faults + 64
    # A request on its way with jitter is in the heap, and so is a client's next one.
    return {
        **{"e": e, "n": n, "m": m, "b": b, "g": e * n, "r": e * b * n, "em": e * m, "ebm": e * b * m},
        **{"k": z.requests, "t": timeline, "four": 4, "heap": events, "faults": faults},
        **{"env": at.ENV_COLUMNS, "model": at.MODEL_COLUMNS, "worker": at.WORKER_COLUMNS, "preferred": _PREFERRED},
        **{"clock": at.CLOCK_COLUMNS, "count": at.COUNT_COLUMNS, "real": at.REAL_COLUMNS, "whole": at.WHOLE_COLUMNS},
        **{"slots": z.slots, "levels": z.levels + 1, "log": z.log, "snapshots": z.snapshots},
        "fallbacks": max(min(fleet.retries, fleet.settings.max_fallbacks) for fleet in fleets),
        "samples": max(map(_samples, fleets)),
        "entries": max(1, *(fleet.cache.entries for fleet in fleets)),
        "rows": 1 + max(model.batching.max_batch_rows for fleet in fleets for model in fleet.models),
        "tables": len({s for fleet in fleets for model in fleet.models for s in model.service.values()}),
    }


def check_fits(sim: Sim, fleet: FleetSpec, requests: int) -> None:
    """Raise `ValueError` where a fleet is larger in anything than those that the arrays were made for."""
    needed, there = sizes([fleet], requests), sim.sizes
    has = {
        "rows": sim.plan.device_s.shape[1],
        "samples": sim.state.sample_s.shape[1],
        "entries": sim.state.cache.shape[1],
        "faults": sim.plan.fault_kind.shape[1],
        "fallbacks": sim.state.fallback.shape[2],
    }
    lengths = _lengths(needed, [fleet], 0)
    wants = {**needed._asdict(), **{name: lengths[name] for name in has}}
    for name, room in {**there._asdict(), **has}.items():
        if name == "requests" and wants[name] != room:
            raise ValueError(f"{wants[name]} requests for an environment made for {room}: give as many")
        if wants[name] > room:
            raise ValueError(f"the fleet needs {wants[name]} {name}, and the environments were made for {room}")


class _Arena:
    """One block of memory that all arrays are cut from: in huge pages, where many small arrays would each have their
    own, and looking up addresses would cost more than the work. What is looked up one entry at a time (a request, an
    execution) lies together, in as few cache lines as it fits; what is scanned over workers lies array by array.
    """

    def __init__(self, lengths: dict[str, int], kinds: Sequence[Fields]) -> None:
        self._lengths = lengths
        self._used = 0
        parts = [part for fields in kinds for part in self._parts(fields)]
        self._memory = np.zeros(sum(_padded(math.prod(shape) * dtype.itemsize) for _, shape, dtype in parts), np.uint8)

    def _shape(self, axes: str) -> tuple[int, ...]:
        return tuple(self._lengths[axis] for axis in axes.split())

    def _parts(self, fields: Fields) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        """Name, shape and type of each array; those together come as one of records, without a name."""
        for together in _TOGETHER:
            entries = [
                (name, dtype, self._shape(axes[len(together) :]))
                for name, (axes, dtype, _) in fields.items()
                if axes.startswith(together)
            ]
            if entries:
                yield "", self._shape(together), np.dtype(entries, align=True)
        for name, (axes, dtype, _) in fields.items():
            if not axes.startswith(_TOGETHER):
                yield name, self._shape(axes), np.dtype(dtype)

    def make(self, fields: Fields) -> dict[str, at.AnyArray]:
        """The arrays of a record, at their start values."""
        made: dict[str, at.AnyArray] = {}
        for name, shape, dtype in self._parts(fields):
            count = math.prod(shape) * dtype.itemsize
            array = self._memory[self._used : self._used + count].view(dtype).reshape(shape)
            self._used += _padded(count)
            made.update({name: array} if name else {field: array[field] for field in dtype.names or ()})
        for name, (_, _, start) in fields.items():
            if start:
                made[name][...] = start
        return made


def _padded(count: int) -> int:
    """To whole cache lines, and some more: arrays at distances of a power of two would all share a few cache sets."""
    return -(-count // 64) * 64 + 13 * 64


def _estimator(kind: type[Any]) -> Fields:
    """The arrays of one of the core's records."""
    return {
        f.name: ("r m" if f.metadata["model_axis"] else "r", float, f.metadata["fill"])
        for f in dataclasses.fields(kind)
    }


def allocate(fleets: Sequence[FleetSpec], requests: int, timeline: int = 0) -> Sim:
    """Arrays for as many environments as there are fleets, with room for the largest, to be filled by `fill`."""
    z = sizes(fleets, requests)
    estimators = {kind: _estimator(kind) for kind in _ESTIMATORS}
    arena = _Arena(_lengths(z, fleets, timeline), (_PLAN, _DEMAND, _STATE, _ASKED, _HEAP, _KNOWN, *estimators.values()))
    return Sim(
        sizes=z,
        plan=Plan(**arena.make(_PLAN)),
        demand=Demand(**arena.make(_DEMAND)),
        state=State(**arena.make(_STATE)),
        asked=Asked(**arena.make(_ASKED)),
        heap=Heap(**arena.make(_HEAP)),
        known=Known(**arena.make(_KNOWN)),
        queue=QueueArrays(**arena.make(estimators[queue.Queue])),
        service=ServiceArrays(**arena.make(estimators[service.Service])),
        latency=LatencyArrays(**arena.make(estimators[latency.Latency])),
        tokens=TokenArrays(**arena.make(estimators[tokens.Tokens])),
    )


def _reset(sim: Sim, e: int) -> None:
    """Everything that changes in a run back to its start, for one environment."""
    z, x = sim.sizes, sim.state
    of_one = {"e": 1, "g": z.workers, "r": z.balancers * z.workers, "ebm": z.balancers * z.models}
    parts = {axis: slice(e * length, (e + 1) * length) for axis, length in of_one.items()}
    for fields, record in ((_STATE, x), (_KNOWN, sim.known)):
        for name, (axes, _, start) in fields.items():
            getattr(record, name)[parts[axes.split()[0]]] = start
    for kind, estimator in _ESTIMATORS.items():
        for f in dataclasses.fields(kind):
            getattr(getattr(sim, estimator), f.name)[parts["r"]] = f.metadata["fill"]
    workers = parts["g"]
    sim.heap.size[e] = sim.heap.lasting[e] = 0
    x.real[workers, at.DEVICE_END] = np.inf
    x.real[workers, at.NEXT_SAMPLE] = np.inf
    x.real[workers, at.SLOWNESS] = 1.0
    for column in (at.UP, at.JOINED, at.READY):
        x.whole[workers, column] = sim.plan.worker[workers, at.W_PRESENT]
    x.whole[workers, at.STARTED_UP] = np.where(x.whole[workers, at.UP], _WARM, 0)
    for column in (at.REACH_HEAD, at.OUTCOME_HEAD, at.DECIDING):
        x.counts[e, column] = -1
    x.counts[e, at.NEXT_ANSWERED] = min(int(sim.plan.env[e, at.E_CLIENTS]), z.requests)


def _service(model: ModelSpec, worker: WorkerSpec) -> ServiceTime | None:
    return model.service.get(worker.device, model.service.get("*"))


class Tables:
    """Service tables, each stored once however many workers and environments share it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rows: dict[ServiceTime, int] = {}

    def row(self, service: ServiceTime) -> int:
        """Of the tables, filled on first sight."""
        if service not in self._rows:
            row = len(self._rows)
            if row == len(self._plan.device_s):
                raise ValueError(f"more than the {row} service times that the environments were made for: reuse those")
            self._rows[service] = row
            device_s, host_s = service_table(service, self._plan.device_s.shape[1] - 1)
            self._plan.device_s[row], self._plan.host_s[row] = device_s, host_s
        return self._rows[service]


def fill(
    sim: Sim,
    tables: Tables,
    e: int,
    fleet: FleetSpec,
    arrivals: Arrivals,
    seed: int,
    *,
    exact: bool = False,
    timeline_period_s: float = 0.0,
) -> None:
    """Set environment `e` to the start of a run."""
    _fill_environment(sim.plan.env[e], fleet)
    for column, value in (
        (at.E_CLIENTS, arrivals.clients),
        (at.E_EXACT, exact),
        (at.E_TIMELINE, timeline_period_s),
    ):
        sim.plan.env[e, column] = value
    _fill_models(sim, e, fleet)
    _fill_workers(sim, tables, e, fleet)
    for i, fault in enumerate(fleet.faults):
        plan = sim.plan
        plan.fault_kind[e, i] = ("slow", "stall", "crash", "errors", "join", "leave", "silent").index(fault.kind)
        plan.fault_worker[e, i] = [worker.name for worker in fleet.workers].index(fault.worker)
        plan.fault_at_s[e, i], plan.fault_until_s[e, i] = fault.at_s, fault.at_s + fault.duration_s
        plan.fault_amount[e, i] = fault.amount
    sim.plan.seed[e] = mix(seed)
    sim.plan.router_seed[e] = [mix((seed << 8) + b) for b in range(sim.sizes.balancers)]
    for name in Demand._fields:
        getattr(sim.demand, name)[e] = getattr(arrivals, name)
    _reset(sim, e)
    _fill_profiles(sim, e, fleet)


def _fill_environment(env: at.FloatArray, fleet: FleetSpec) -> None:
    settings, reports, network = fleet.settings, fleet.reports, fleet.network
    limits, estimators = settings.limits, settings.estimators
    fallible = bool(fleet.faults) or any(
        model.batching.max_queue_requests or math.isfinite(model.batching.timeout_s) for model in fleet.models
    )
    values = {
        at.E_PERIOD: reports.period_s,
        at.E_DELAY: reports.delay_s,
        at.E_JITTER: reports.jitter_s,
        at.E_LOSS: reports.loss,
        at.E_TO_WORKER: network.to_worker_s,
        at.E_TO_CLIENT: network.to_client_s,
        at.E_NET_JITTER: network.jitter_s,
        at.E_OUTCOME: network.outcome_s,
        at.E_RETRIES: fleet.retries,
        at.E_COLD: fleet.cold.executions,
        at.E_COLD_FACTOR: fleet.cold.factor,
        at.E_SCALE_PERIOD: fleet.autoscale.period_s,
        at.E_SCALE_UP: fleet.autoscale.up_pending,
        at.E_SCALE_DOWN: fleet.autoscale.down_pending,
        at.E_SCALE_LOAD: fleet.autoscale.load_s,
        at.E_SCALE_LEAST: fleet.autoscale.min_workers,
        at.E_CACHE: fleet.cache.entries,
        at.E_SAVING: fleet.cache.saving,
        at.E_SAMPLES: _samples(fleet),
        at.E_FAULTS: len(fleet.faults),
        at.E_FALLIBLE: fallible,
        at.E_REQUIRED: settings.reports_required,
        at.E_STALE: settings.stale_after_s,
        at.E_MAX_PENDING: limits.max_pending_per_worker,
        at.E_SHED_PRIORITY: limits.sheddable_priority,
        at.E_SHED_PENDING: limits.sheddable_max_pending_per_worker,
        at.E_SHED_LATE: limits.shed_late,
        at.E_FALLBACKS: settings.max_fallbacks,
        at.E_LATENCY_DECAY: estimators.latency_decay_s,
        at.E_ERROR_DECAY: estimators.error_decay_s,
        at.E_MEMORY: estimators.service_memory,
        at.E_FADE: -math.expm1(-1.0 / estimators.service_memory_s),
        at.E_DEFAULT_S: estimators.default_service_s,
        at.E_CAPACITY: estimators.tokens.capacity,
        at.E_REFILL: estimators.tokens.refill_per_s,
        at.E_TARGET: estimators.tokens.target_pending,
    }
    for column, value in values.items():
        env[column] = value


def _fill_models(sim: Sim, e: int, fleet: FleetSpec) -> None:
    for m, model in enumerate(fleet.models):
        spec, batching = sim.plan.model[e * sim.sizes.models + m], model.batching
        spec[at.M_MAX_ROWS] = batching.max_batch_rows
        spec[at.M_DELAY] = batching.queue_delay_s
        spec[at.M_LEVELS] = batching.priority_levels
        spec[at.M_DEFAULT_LEVEL] = batching.default_priority
        spec[at.M_MAX_QUEUE] = batching.max_queue_requests
        spec[at.M_TIMEOUT] = batching.timeout_s
        spec[at.M_DELAY_LATE] = batching.timeout_action == "delay"
        spec[at.M_NOISE] = {"none": at.NO_NOISE, "lognormal": at.LOGNORMAL, "exponential": at.EXPONENTIAL}[
            model.noise.kind
        ]
        variance = math.log1p(model.noise.cv * model.noise.cv)
        spec[at.M_SIGMA], spec[at.M_HALF_VARIANCE] = math.sqrt(variance), variance / 2
        preferred = batching.preferred_rows or (batching.max_batch_rows,)
        spec[at.M_PREFERRED] = max(preferred)
        sim.plan.preferred[e * sim.sizes.models + m] = 0
        sim.plan.preferred[e * sim.sizes.models + m, : len(preferred)] = preferred


def _fill_workers(sim: Sim, tables: Tables, e: int, fleet: FleetSpec) -> None:
    n, plan = sim.sizes.workers, sim.plan
    plan.table[e * n : (e + 1) * n] = -1
    for w, worker in enumerate(fleet.workers):
        g = e * n + w
        plan.worker[g, at.W_SPEED] = worker.speed
        plan.worker[g, at.W_CONCURRENCY] = worker.sharing.concurrency
        plan.worker[g, at.W_INTERFERENCE] = worker.sharing.interference
        plan.weight[e, w] = worker.weight
        plan.name_hash[e, w] = key_of(worker.name)
        for m, model in enumerate(fleet.models):
            service_time = _service(model, worker)
            loaded = not worker.models or model.name in worker.models
            if loaded and service_time is not None:
                plan.table[g, m] = tables.row(service_time)
                plan.instances[g, m] = model.instances
    for w in range(n):
        there = w < len(fleet.workers) and fleet.workers[w].present
        sim.plan.worker[e * n + w, at.W_PRESENT] = there
        sim.plan.worker[e * n + w, at.W_EXISTS] = w < len(fleet.workers)


def _told(worker: WorkerSpec) -> str:
    """The device kind as reports tell it."""
    return "" if worker.device == "*" else worker.device


def _fill_profiles(sim: Sim, e: int, fleet: FleetSpec) -> None:
    """`Fleet._take_profiles`."""
    z = sim.sizes
    for w, worker in enumerate(fleet.workers):
        for m, model in enumerate(fleet.models):
            profile = fleet.settings.estimators.profiles.get((_told(worker), model.name), (np.nan, np.nan))
            for b in range(z.balancers):
                r = (e * z.balancers + b) * z.workers + w
                sim.service.profile_fixed_s[r, m], sim.service.profile_per_row_s[r, m] = profile
