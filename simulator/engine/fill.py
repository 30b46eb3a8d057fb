"""From what is simulated to the engine's arrays: one environment, set to the start of a run."""

import dataclasses
import math
from typing import get_args

import numpy as np

from balancer.kernel.state import settings_row
from balancer.scheduler.holding.state import holding_row, model_rows
from balancer.scheduler.worker import Worker, kinds_of, objections, tier_of
from policies.base import FloatArray, IntArray
from policies.hashing import key_of, kind_hash_of, mix, model_hash_of
from simulator.arrivals import Arrivals, Extras, Prompts
from simulator.engine import layout as at
from simulator.engine.allocate import TooLargeError, reset, samples
from simulator.engine.layout import EngineDemand, EnginePlan, Sim
from simulator.spec import FaultKind, FleetSpec, ModelSpec, ServiceTime, SimulatedWorker

_VERSION = "1"


class EngineTables:
    """Service tables, each stored once however many workers and environments share it."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._rows: dict[ServiceTime, int] = {}
        self._free = list(reversed(range(len(plan.device_s))))

    def row(self, service: ServiceTime) -> int:
        """Of the tables, filled on first sight, or again where it had to give way to others."""
        if service not in self._rows:
            if not self._free:
                self._drop_unused()
            row = self._free.pop()
            self._rows[service] = row
            device_s, host_s = service.table(self._plan.device_s.shape[1] - 1)
            self._plan.device_s[row], self._plan.host_s[row] = device_s, host_s
        return self._rows[service]

    def _drop_unused(self) -> None:
        """Make room: environments that are loaded anew and anew leave tables behind that none has now."""
        used = set(self._plan.table.ravel().tolist())
        for service, row in list(self._rows.items()):
            if row not in used:
                del self._rows[service]
                self._free.append(row)
        if not self._free:
            count = len(self._rows)
            raise TooLargeError(f"more than the {count} service times that the environments were made for: reuse those")


def fill(sim: Sim, tables: EngineTables, e: int, fleet: FleetSpec, arrivals: Arrivals, seed: int) -> None:
    _fill_environment(sim.plan.env[e], fleet)
    sim.plan.env[e, at.E_CLIENTS] = arrivals.clients
    # Balancers differ in nothing but where they stand; the row says by it whether zones matter at all. To whom they do
    # not, all workers are near.
    sim.decision.settings[e] = np.max([settings_row(fleet.settings_of(b)) for b in range(fleet.balancers)], axis=0)
    _fill_models(sim, e, fleet)
    _fill_holding(sim, e, fleet)
    _fill_workers(sim, tables, e, fleet)
    for i, fault in enumerate(fleet.faults):
        plan = sim.plan
        plan.fault_kind[e, i] = get_args(FaultKind).index(fault.kind)
        plan.fault_worker[e, i] = [worker.name for worker in fleet.workers].index(fault.worker)
        plan.fault_at_s[e, i], plan.fault_until_s[e, i] = fault.at_s, fault.at_s + fault.duration_s
        plan.fault_amount[e, i] = fault.amount
        plan.fault_model[e, i] = [model.name for model in fleet.models].index(fault.model) if fault.model else 0
    sim.plan.seed[e] = mix(seed)
    sim.plan.router_seed[e] = [mix((seed << 8) + b) for b in range(sim.sizes.balancers)]
    extras = arrivals.extras or Extras.none(len(arrivals))
    sim.plan.env[e, at.E_EXTRAS] = arrivals.extras is not None
    for name in EngineDemand._fields:
        if hasattr(extras, name) or hasattr(arrivals, name):
            getattr(sim.demand, name)[e] = getattr(extras if hasattr(extras, name) else arrivals, name)
    if arrivals.prompts is not None and any(model.generation for model in fleet.models):
        _fill_prompts(sim, e, arrivals.prompts, arrivals.numbered_blocks())
    reset(sim, e)
    _fill_profiles(sim, e, fleet)
    _fill_zones(sim, e, fleet)


def _fill_prompts(sim: Sim, e: int, prompts: Prompts, names: IntArray) -> None:
    demand = sim.demand
    demand.tokens[e], demand.output[e], demand.blocks[e] = prompts.tokens, prompts.output, prompts.blocks
    demand.first_block[e] = np.cumsum(prompts.blocks) - prompts.blocks
    sim.plan.env[e, at.E_BLOCK_TOKENS] = prompts.block_tokens
    demand.block[e, : len(names)] = names


def _fill_environment(env: FloatArray, fleet: FleetSpec) -> None:
    estimators, reports, network = fleet.settings.estimators, fleet.reports, fleet.network
    may_change = bool(fleet.faults) or math.isfinite(fleet.autoscale.period_s)
    fallible = may_change or any(
        model.batching.max_queue_requests or math.isfinite(model.batching.timeout_s) for model in fleet.models
    )
    values = {
        at.E_PEERS: fleet.peers_s if fleet.tells_peers else -1.0,
        at.E_PERIOD: reports.period_s,
        at.E_DELAY: fleet.report_delay_s,
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
        at.E_SAMPLES: samples(fleet),
        at.E_FAULTS: len(fleet.faults),
        at.E_FALLIBLE: fallible,
        at.E_BALANCERS: fleet.balancers,
        at.E_UNEQUAL_WAYS: network.jitter_s > 0 or bool(network.across_s),
        at.E_STICKY: fleet.settings.sticky_keys,
        at.E_PLACER: 0.0,
        at.E_HOLDS: bool(fleet.settings.holding.models),
        at.E_HOLDER: 0.0,
        at.E_FADE: -math.expm1(-1.0 / estimators.service_memory_s),
    }
    for column, value in values.items():
        env[column] = value


def _fill_models(sim: Sim, e: int, fleet: FleetSpec) -> None:
    for m, model in enumerate(fleet.models):
        sim.decision.model_hash[e, m] = model_hash_of(model.name)
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
        generation = model.generation
        spec[at.M_STEP_TOKENS] = 0 if generation is None else generation.step_tokens
        spec[at.M_MAX_SEQUENCES] = 0 if generation is None else generation.max_sequences
        sim.plan.preferred[e * sim.sizes.models + m] = 0
        sim.plan.preferred[e * sim.sizes.models + m, : len(preferred)] = preferred


def _fill_holding(sim: Sim, e: int, fleet: FleetSpec) -> None:
    holding, held = fleet.settings.holding, sim.held
    held.settings[e] = holding_row(holding)
    held.models[e, : len(fleet.models)] = model_rows(holding, [model.name for model in fleet.models])
    held.weight[e] = 1.0
    for i in range(min(len(fleet.tenants), held.weight.shape[1])):
        held.weight[e, i] = holding.weights.get(fleet.tenants[i], 1.0)


def _fill_workers(sim: Sim, tables: EngineTables, e: int, fleet: FleetSpec) -> None:
    n, plan = sim.sizes.workers, sim.plan
    plan.table[e * n : (e + 1) * n] = -1
    plan.loaded[e * n : (e + 1) * n] = at.NEVER_LOADED
    for w, worker in enumerate(fleet.workers):
        g = e * n + w
        plan.worker[g, at.W_SPEED] = worker.speed
        plan.worker[g, at.W_CONCURRENCY] = worker.sharing.concurrency
        plan.worker[g, at.W_INTERFERENCE] = worker.sharing.interference
        sim.decision.weight[e, w] = worker.weight
        sim.decision.name_hash[e, w] = key_of(worker.name)
        sim.decision.kind_hash[e, w] = kind_hash_of(_known_device(worker))
        for m, model in enumerate(fleet.models):
            service_time = model.service_on(worker.device)
            plan.permitted[g, m] = _permitted(fleet, worker, model)
            if fleet.may_hold(worker, model.name) and service_time is not None:
                plan.table[g, m] = tables.row(service_time)
                plan.loaded[g, m] = at.LOADED if worker.holds(model.name) else at.NEVER_LOADED
                plan.instances[g, m] = model.most_at_once
                device = None if model.generation is None else model.generation.on(worker.device)
                if device is not None:
                    plan.generating[g, m] = device.memory_tokens, device.context_s, device.attention_s
    for w in range(n):
        there = w < len(fleet.workers) and fleet.workers[w].present
        sim.plan.worker[e * n + w, at.W_PRESENT] = there
        sim.plan.worker[e * n + w, at.W_EXISTS] = w < len(fleet.workers)


def _permitted(fleet: FleetSpec, worker: SimulatedWorker, model: ModelSpec) -> tuple[bool, bool]:
    """Whether the model table permits the model there: to a worker that never reported, and to one that has."""
    silent = Worker(worker.name, device=_known_device(worker))
    versions = {model.name: frozenset({_VERSION})}
    reported = Worker(worker.name, device=_known_device(worker), ready=True, number=0, versions=versions)
    optional = dataclasses.replace(fleet.settings, reports_required=False)
    before = not any(objections(silent, optional, model.name, ""))
    return before, not any(objections(reported, fleet.settings, model.name, ""))


def _known_device(worker: SimulatedWorker) -> str:
    return "" if worker.device == "*" else worker.device


def _fill_profiles(sim: Sim, e: int, fleet: FleetSpec) -> None:
    z = sim.sizes
    kinds = kinds_of(_known_device(worker) for worker in fleet.workers)
    for b in range(z.balancers):
        first = (e * z.balancers + b) * z.workers
        sim.decision.kind[first : first + len(kinds)] = kinds
    for w, worker in enumerate(fleet.workers):
        for m, model in enumerate(fleet.models):
            profile = fleet.settings.estimators.profiles.get((_known_device(worker), model.name), (np.nan, np.nan))
            for b in range(z.balancers):
                r = (e * z.balancers + b) * z.workers + w
                sim.service.profile_fixed_s[r, m], sim.service.profile_per_row_s[r, m] = profile


def _fill_zones(sim: Sim, e: int, fleet: FleetSpec) -> None:
    z = sim.sizes
    for b in range(fleet.balancers):
        zones = fleet.settings_of(b).zones
        for w, worker in enumerate(fleet.workers):
            r = (e * z.balancers + b) * z.workers + w
            sim.decision.tier[r] = tier_of(worker.zone, zones)
            sim.plan.across_s[r] = fleet.across_s(b, worker)
