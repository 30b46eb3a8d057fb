"""What must hold of fleets and arrivals before compiled code, which checks no bounds, gets them."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from simulator.arrivals import Arrivals, Extras, Prompts
from simulator.spec import BatchingSpec, Fault, FleetSpec, GenerationSpec, ModelSpec

MOST_PREFERRED = 8
MOST_LEVELS = 8


def check_fleet(fleet: FleetSpec) -> None:
    """Raise `ValueError` naming field, value and remedy."""
    for problem in _fleet_problems(fleet):
        raise ValueError(problem)


def check_arrivals(fleet: FleetSpec, arrivals: Arrivals) -> None:
    """Raise `ValueError` naming field, value and remedy."""
    for problem in _arrival_problems(fleet, arrivals):
        raise ValueError(problem)


def _out_of_range(above_0: Mapping[str, float], at_least_1: Mapping[str, float]) -> Iterator[str]:
    for name, value in above_0.items():
        if not value > 0:
            yield f"{name} is {value}: give a number above 0"
    for name, value in at_least_1.items():
        if value < 1:
            yield f"{name} is {value}: give at least 1"


def _fleet_problems(fleet: FleetSpec) -> Iterator[str]:
    names, models = [worker.name for worker in fleet.workers], [model.name for model in fleet.models]
    if not names or not models:
        yield f"fleet has {len(names)} workers and {len(models)} models: give at least one of each"
    if len(set(names)) != len(names):
        yield f"workers are {names}: give each a name of its own"
    yield from _out_of_range(
        {"reports.period_s": fleet.reports.period_s, "autoscale.period_s": fleet.autoscale.period_s},
        {"balancers": fleet.balancers},
    )
    if fleet.peers_s is not None and not 0 <= fleet.peers_s < math.inf:
        yield f"peers_s is {fleet.peers_s}: give seconds of 0 or more, or None"
    if fleet.zones and len(fleet.zones) != fleet.balancers:
        yield f"zones are {fleet.zones}: give one for each of the {fleet.balancers} balancers, or none"
    for zone, ways_s in fleet.network.across_s.items():
        for other, seconds in ways_s.items():
            if not seconds >= 0:
                yield f"network.across_s from {zone!r} to {other!r} is {seconds}: give seconds of 0 or more"
    for worker in fleet.workers:
        for name in set(worker.models) - set(models):
            yield f"worker {worker.name} has model {name!r}, which the fleet has not: name some of {models}"
        own = f"of worker {worker.name}"
        yield from _out_of_range({f"speed {own}": worker.speed}, {f"concurrency {own}": worker.sharing.concurrency})
    for model in fleet.models:
        yield from _model_problems(model)
    for fault in fleet.faults:
        yield from _fault_problems(fleet, fault)


def _fault_problems(fleet: FleetSpec, fault: Fault) -> Iterator[str]:
    workers = {worker.name: worker for worker in fleet.workers}
    models = {model.name: model for model in fleet.models}
    if fault.worker not in workers:
        yield f"fault {fault.kind} names worker {fault.worker!r}: name one of {list(workers)}"
    if fault.kind == "slow":
        yield from _out_of_range({"amount of fault slow": fault.amount}, {})
    if fault.kind not in ("load", "unload"):
        if fault.model:
            yield f"fault {fault.kind} has model {fault.model!r}: leave it out, only load and unload are of one"
    elif fault.model not in models:
        yield f"fault {fault.kind} has model {fault.model!r}: name one of {list(models)}"
    elif models[fault.model].service_on(device := workers[fault.worker].device) is None:
        yield f"fault {fault.kind} of {fault.model} on {fault.worker}: the model has no service on {device}"


def _model_problems(model: ModelSpec) -> Iterator[str]:
    batching = model.batching
    own = f"of {model.name}"
    yield from _out_of_range(
        {}, {f"max_batch_rows {own}": batching.max_batch_rows, f"instances {own}": model.instances}
    )
    if len(batching.preferred_rows) > MOST_PREFERRED or not all(
        0 < rows <= batching.max_batch_rows for rows in batching.preferred_rows
    ):
        yield (
            f"preferred_rows {own} are {batching.preferred_rows}: "
            f"give at most {MOST_PREFERRED} sizes of 1 to {batching.max_batch_rows} rows"
        )
    if not 1 <= batching.default_priority <= batching.priority_levels <= MOST_LEVELS:
        yield (
            f"priority_levels and default_priority {own} are {batching.priority_levels} and "
            f"{batching.default_priority}: give 1 to {MOST_LEVELS} levels and one of them"
        )
    if model.generation is not None:
        yield from _generation_problems(model, model.generation)
    for device, service in model.service.items():
        lengths = {len(service.rows), len(service.device_s), len(service.host_s) or len(service.rows)}
        if len(lengths) > 1 or not service.rows or list(service.rows) != sorted(set(service.rows)):
            yield f"rows of service {own} on {device} are {service.rows}: give each once, ascending"
        if any(seconds < 0 for seconds in (*service.device_s, *service.host_s)):
            yield f"service {own} on {device} has negative times: give seconds of 0 or more"


def _generation_problems(model: ModelSpec, generation: GenerationSpec) -> Iterator[str]:
    own = f"of {model.name}"
    if not 1 <= generation.max_sequences <= generation.step_tokens:
        yield (
            f"max_sequences {own} is {generation.max_sequences}: give 1 to {generation.step_tokens}, its step_tokens"
        )
    for device, memory in generation.devices.items():
        yield from _out_of_range({}, {f"memory_tokens {own} on {device}": memory.memory_tokens})
        if memory.context_s < 0 or memory.attention_s < 0:
            yield f"generation {own} on {device} has negative times: give seconds of 0 or more"
    for device in model.service:
        if generation.on(device) is None:
            yield f"generation {own} has no device {device}: give its memory_tokens, or those of '*'"
    batching, plain = model.batching, BatchingSpec()
    for name in ("queue_delay_s", "preferred_rows", "timeout_s"):
        if getattr(batching, name) != getattr(plain, name):
            yield f"{name} {own} is {getattr(batching, name)}: leave it out, since the model generates"


def _arrival_problems(fleet: FleetSpec, arrivals: Arrivals) -> Iterator[str]:
    if not len(arrivals):
        yield "arrivals are empty: give at least one request"
        return
    yield from _lengths_problems(arrivals, len(arrivals), "model rows work key deadline_s priority balancer tenant")
    yield from _range_problems(arrivals, {"model": (0, len(fleet.models) - 1), "balancer": (0, fleet.balancers - 1)})
    most = np.array([model.batching.max_batch_rows for model in fleet.models])[arrivals.model]
    wrong = np.flatnonzero((arrivals.rows < 1) | (arrivals.rows > most))
    if len(wrong):
        k = wrong[0]
        yield f"rows of request {k} is {arrivals.rows[k]}: its model takes 1 to {most[k]} (max_batch_rows)"
    if arrivals.extras is not None:
        yield from _extras_problems(arrivals, arrivals.extras)
    yield from _prompt_problems(fleet, arrivals)
    if arrivals.clients == 0 and (np.any(np.diff(arrivals.time_s) < 0) or arrivals.time_s[0] < 0):
        yield "time_s of arrivals descends or is negative: sort the requests by time, from 0"


def _prompt_problems(fleet: FleetSpec, arrivals: Arrivals) -> Iterator[str]:
    of_generating = np.isin(arrivals.model, [m for m, model in enumerate(fleet.models) if model.generation is not None])
    prompts = arrivals.prompts
    if prompts is None:
        if of_generating.any():
            k = int(of_generating.argmax())
            yield f"prompts are none, and request {k} goes to a model that generates: give them"
        return
    yield from _lengths_problems(prompts, len(arrivals), "tokens output blocks")
    if prompts.tokens.min() < 1 or prompts.output.min() < 1 or prompts.blocks.min() < 0 or prompts.block_tokens < 1:
        yield "tokens, output, blocks or block_tokens of prompts is too small: give at least 1, of blocks at least 0"
    if len(prompts.block) != prompts.blocks.sum():
        yield f"prompts name {len(prompts.block)} blocks and have {prompts.blocks.sum()}: name as many"
    if np.any(prompts.blocks.astype(np.int64) * prompts.block_tokens > prompts.tokens):
        yield f"blocks of a prompt are longer than it is: each is of {prompts.block_tokens} tokens"
    for m, model in enumerate(fleet.models):
        own = arrivals.model == m
        if model.generation is not None and own.any():
            most = int((prompts.tokens[own].astype(np.int64) + prompts.output[own]).max())
            least = min(device.memory_tokens for device in model.generation.devices.values())
            if most > least:
                yield f"a request to {model.name} has {most} tokens: no more than {least} fit, its least memory_tokens"


def _extras_problems(arrivals: Arrivals, extras: Extras) -> Iterator[str]:
    requests = len(arrivals)
    yield from _lengths_problems(extras, requests, "sequence starts responses first_share patience_s")
    ranges = {"sequence": (-1, requests - 1), "first_share": (np.nextafter(0, 1), 1), "responses": (0, np.inf)}
    yield from _range_problems(extras, ranges)
    own = np.flatnonzero(extras.sequence >= 0)
    if not arrivals.key[own].all():
        yield "key of a request of a sequence is 0: give each the key of its sequence"
    own = own[np.argsort(extras.sequence[own], kind="stable")]
    same = np.diff(extras.sequence[own]) == 0
    for name in ("key", "model"):
        column = getattr(arrivals, name)[own]
        if np.any(same & (column[1:] != column[:-1])):
            yield f"requests of one sequence differ in {name}: give all of them the same"
    if not extras.patience_s.min() > 0:
        yield f"patience_s of a request is {extras.patience_s.min()}: give seconds above 0, infinite for ever"


def _lengths_problems(record: Arrivals | Extras | Prompts, requests: int, names: str) -> Iterator[str]:
    for name in names.split():
        if (count := len(getattr(record, name))) != requests:
            yield f"arrivals have {requests} times and {count} of {name}: give as many"


def _range_problems(record: Arrivals | Extras, ranges: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    for name, (low, high) in ranges.items():
        column = getattr(record, name)
        if not low <= column.min() <= column.max() <= high:
            yield f"{name} of arrivals runs from {column.min()} to {column.max()}: give {low:g} to {high:g}"
