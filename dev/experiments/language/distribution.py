"""The written distribution of fleets of language models: every number that is drawn stands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from balancer.kernel.settings import Settings
from balancer.load.arrivals import Bursts
from simulator.capacity import seconds_of
from simulator.language_models import measured_steps, roofline
from simulator.scenario import Scenario
from simulator.spec import Fault, FleetSpec, GenerationSpec, ModelSpec, NetworkSpec, Reports, SimulatedWorker
from simulator.train.distribution import drawn, log_uniform, whole
from simulator.workload.draws import Lognormal, Sessions, UniformKeys
from simulator.workload.extras import Stream
from simulator.workload.prompts import PromptText
from simulator.workload.times import Poisson, Process
from simulator.workload.workload import Demand, ModelTraffic, Workload

_MODEL = "Llama-2-7b-hf"
_NETWORK = NetworkSpec(to_worker_s=0.001, to_client_s=0.0005, outcome_s=0.001)
_WARM_SAMPLE = 4000
Dice = np.random.Generator


@dataclass(frozen=True)
class Ranges:
    """Each draw is independent of the others."""

    devices: tuple[str, ...] = drawn(("H100", "A100", "A40"), "subset", "kinds of devices: one (40%), two or all three")
    workers: tuple[int, int] = drawn(
        (4, 10), "whole, uniform", "workers, over the number of kinds (rounded up) of each"
    )
    kv_heads: tuple[int, ...] = drawn((8, 32), "one of", "heads of keys and values: how much memory holds")
    requests_are: tuple[str, ...] = drawn(
        ("sessions", "agents", "shared prompts", "documents"), "one of", "what is asked, as the next lines say"
    )
    answer: tuple[float, float] = drawn((100.0, 500.0), "log-uniform", "mean tokens of an answer (lognormal, cv 1)")
    correlation: tuple[float, float] = drawn((0.0, 0.6), "uniform", "of an answer's length with its prompt's")
    own: tuple[float, float] = drawn((80.0, 800.0), "log-uniform", "mean tokens that a prompt adds (lognormal, cv 1.5)")
    common: tuple[int, int] = drawn((0, 1500), "whole, uniform", "sessions: tokens that all prompts begin with")
    active: tuple[int, int] = drawn((80, 500), "whole, uniform", "sessions at any moment")
    turns: tuple[float, float] = drawn((3.0, 10.0), "uniform", "mean requests of a session")
    agent_common: tuple[int, int] = drawn((2000, 6000), "whole, uniform", "agents: tokens that all prompts begin with")
    agents: tuple[int, int] = drawn((20, 120), "whole, uniform", "agents at any moment")
    steps: tuple[float, float] = drawn((10.0, 30.0), "uniform", "mean requests of an agent")
    groups: tuple[int, int] = drawn((20, 200), "whole, uniform", "shared prompts: how many")
    group: tuple[int, int] = drawn((1000, 8000), "whole, uniform", "tokens of each")
    document: tuple[float, float] = drawn((600.0, 4000.0), "log-uniform", "documents: mean tokens; nothing is shared")
    load: tuple[float, float] = drawn(
        (0.5, 0.85), "uniform", "mean rate, of what the fleet could do if no block were computed twice"
    )
    bursts: float = drawn(0.4, "probability", "requests come in bursts of twice to four times the rate of the calm")
    burst_s: tuple[float, float] = drawn(
        (2.0, 20.0), "log-uniform", "mean seconds of a burst; the calm is 3 times that"
    )
    balancers: tuple[int, ...] = drawn((1, 2, 4), "one of", "balancers")
    report_s: tuple[float, ...] = drawn((0.05, 0.05, 1.0), "one of", "seconds between reports of a worker")
    happens: tuple[str, ...] = drawn(
        ("nothing", "nothing", "crash", "join"),
        "one of",
        "crash: a worker is away for a tenth of the run; join: one comes",
    )
    length_s: float = drawn(240.0, "always", "seconds of a run, of which the first tenth is not counted")
    requests: tuple[int, int] = drawn((2000, 10000), "always", "but no fewer and no more requests than these")


RANGES = Ranges()


def scenario(seed: int, number: int, ranges: Ranges = RANGES) -> Scenario:
    """One of the scenarios of a seed, by its number from 0 on; equal arguments give equal ones."""
    dice = np.random.default_rng([seed, number])
    kinds = [str(kind) for kind in dice.permutation(ranges.devices)[: int(dice.choice((1, 2, 3), p=(0.4, 0.3, 0.3)))]]
    each = -(-whole(dice, ranges.workers) // len(kinds))
    workers = tuple(SimulatedWorker(f"{kind}-{i}", device=kind) for kind in kinds for i in range(each))
    period_s = float(dice.choice(ranges.report_s))
    fleet = FleetSpec(
        models=(_model(int(dice.choice(ranges.kv_heads))),),
        workers=workers,
        balancers=int(dice.choice(ranges.balancers)),
        reports=Reports(period_s, delay_s=0.001),
        network=_NETWORK,
        settings=Settings(sticky_keys=False, stale_after_s=max(1.0, 3 * period_s)),
    )
    asked = str(dice.choice(ranges.requests_are))
    workload = _WORKLOADS[asked](dice, ranges)
    fast = bool(dice.random() < ranges.bursts)
    workload = replace(workload, process=_process(dice, ranges, fast))
    load = float(dice.uniform(*ranges.load))
    workload = workload.at_rate(load * warm_capacity_per_s(fleet, workload))
    requests = int(np.clip(ranges.length_s * workload.rate_per_s, *ranges.requests))
    length_s = requests / workload.rate_per_s
    happens, whom = str(dice.choice(ranges.happens)), int(dice.integers(len(workers)))
    if happens == "crash":
        fleet = replace(fleet, faults=(Fault("crash", workers[whom].name, 0.4 * length_s, 0.1 * length_s),))
    elif happens == "join":
        there = tuple(replace(worker, present=w != whom) for w, worker in enumerate(workers))
        fleet = replace(fleet, workers=there, faults=(Fault("join", workers[whom].name, 0.4 * length_s, 1.0),))
    of = f"{asked}, {'+'.join(sorted(kinds))}, {len(workers)} workers, load {load:.2f}, {happens}"
    return Scenario(f"l{number:02d}", of, "held-out", fleet, workload, requests)


@cache
def _model(kv_heads: int) -> ModelSpec:
    devices = RANGES.devices
    service = {device: measured_steps(_MODEL, device) for device in devices}
    return ModelSpec(
        "llama", service, generation=GenerationSpec({device: roofline(_MODEL, device, kv_heads) for device in devices})
    )


def _traffic(dice: Dice, ranges: Ranges, **prompt: Any) -> tuple[ModelTraffic, ...]:
    answers = Lognormal(cv=1.0, mean=log_uniform(dice, ranges.answer))
    stream = Stream(answers, follows="rows", correlation=float(dice.uniform(*ranges.correlation)))
    return (ModelTraffic("llama", stream=stream, prompts=PromptText(**prompt)),)


def _own(dice: Dice, ranges: Ranges) -> Lognormal:
    return Lognormal(cv=1.5, mean=log_uniform(dice, ranges.own))


def _sessions(dice: Dice, ranges: Ranges) -> Workload:
    traffic = _traffic(
        dice, ranges, tokens=_own(dice, ranges), common_tokens=whole(dice, ranges.common), conversation=True
    )
    return Workload(1.0, traffic, keys=Sessions(whole(dice, ranges.active), float(dice.uniform(*ranges.turns))))


def _agents(dice: Dice, ranges: Ranges) -> Workload:
    common = whole(dice, ranges.agent_common)
    traffic = _traffic(dice, ranges, tokens=_own(dice, ranges), common_tokens=common, conversation=True)
    return Workload(1.0, traffic, keys=Sessions(whole(dice, ranges.agents), float(dice.uniform(*ranges.steps))))


def _shared_prompts(dice: Dice, ranges: Ranges) -> Workload:
    traffic = _traffic(dice, ranges, tokens=_own(dice, ranges), key_tokens=whole(dice, ranges.group))
    return Workload(1.0, traffic, keys=UniformKeys(whole(dice, ranges.groups)))


def _documents(dice: Dice, ranges: Ranges) -> Workload:
    return Workload(1.0, _traffic(dice, ranges, tokens=Lognormal(cv=1.5, mean=log_uniform(dice, ranges.document))))


_WORKLOADS: dict[str, Callable[[Dice, Ranges], Workload]] = {
    "sessions": _sessions,
    "agents": _agents,
    "shared prompts": _shared_prompts,
    "documents": _documents,
}


def _process(dice: Dice, ranges: Ranges, fast: bool) -> Process:
    factor, burst_s = float(dice.uniform(2.0, 4.0)), log_uniform(dice, ranges.burst_s)
    return Bursts(factor, burst_s, 3 * burst_s) if fast else Poisson()


def warm_capacity_per_s(fleet: FleetSpec, workload: Workload) -> float:
    """Requests a second that the workers could serve, if each block of a prompt were computed once and never again."""
    (demand,) = workload.demand(fleet)
    assert demand.prompts is not None  # the model generates
    arrivals = workload.arrivals(fleet, _WARM_SAMPLE, 0)
    assert arrivals.prompts is not None  # as above
    prompts, names = arrivals.prompts, arrivals.numbered_blocks()
    first = np.zeros(len(names), bool)
    first[np.unique(names, return_index=True)[1]] = True
    request = np.repeat(np.arange(_WARM_SAMPLE), prompts.blocks)
    seen = np.bincount(request, weights=~first, minlength=_WARM_SAMPLE) * prompts.block_tokens
    late = slice(_WARM_SAMPLE // 4, None)
    new = np.maximum(prompts.tokens - seen, 1.0)[late]
    pairs = float((new * (seen[late] + new / 2)).mean())
    warm = Demand(1.0, 1.0, 1.0, replace(demand.prompts, tokens=float(new.mean()), pairs=pairs))
    return sum(1 / seconds_of(fleet.models[0], worker, warm)[0] for worker in fleet.workers)
