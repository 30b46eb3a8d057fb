"""What must hold of fleets and arrivals before compiled code, which checks no bounds, gets them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.arrivals import Arrivals
from simulator.spec import Fault, FleetSpec, ModelSpec, WorkerSpec

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


def _fleet_problems(fleet: FleetSpec) -> Iterator[str]:
    names = [worker.name for worker in fleet.workers]
    if not names or not fleet.models:
        yield f"fleet has {len(names)} workers and {len(fleet.models)} models: give at least one of each"
    if len(set(names)) != len(names):
        yield f"workers are {names}: give each a name of its own"
    for fault in fleet.faults:
        if fault.worker not in names:
            yield f"fault {fault.kind} names worker {fault.worker!r}: name one of {names}"
        yield from _load_problems(fleet, fault)
        if fault.kind == "slow" and not fault.amount > 0:
            yield f"amount of fault slow is {fault.amount}: give a factor above 0"
    if fleet.balancers < 1:
        yield f"balancers is {fleet.balancers}: give at least 1"
    if not fleet.reports.period_s > 0:
        yield f"reports.period_s is {fleet.reports.period_s}: give seconds above 0"
    if not fleet.autoscale.period_s > 0:
        yield f"autoscale.period_s is {fleet.autoscale.period_s}: give seconds above 0, infinite for off"
    yield from _zone_problems(fleet)
    for worker in fleet.workers:
        yield from _worker_problems(worker, [model.name for model in fleet.models])
    for model in fleet.models:
        yield from _model_problems(model)


def _load_problems(fleet: FleetSpec, fault: Fault) -> Iterator[str]:
    models = {model.name: model for model in fleet.models}
    if fault.kind not in ("load", "unload"):
        if fault.model:
            yield f"fault {fault.kind} has model {fault.model!r}: leave it out, only load and unload are of one"
        return
    if fault.model not in models:
        yield f"fault {fault.kind} has model {fault.model!r}: name one of {list(models)}"
        return
    for worker in fleet.workers:
        if worker.name == fault.worker and models[fault.model].service_on(worker.device) is None:
            yield f"fault {fault.kind} of {fault.model} on {worker.name}: the model has no service on {worker.device}"


def _zone_problems(fleet: FleetSpec) -> Iterator[str]:
    if fleet.zones and len(fleet.zones) != fleet.balancers:
        yield f"zones are {fleet.zones}: give one for each of the {fleet.balancers} balancers, or none"
    for zone, others in fleet.network.across_s.items():
        for other, seconds in others.items():
            if not seconds >= 0:
                yield f"network.across_s from {zone!r} to {other!r} is {seconds}: give seconds of 0 or more"


def _worker_problems(worker: WorkerSpec, models: list[str]) -> Iterator[str]:
    for name in set(worker.models) - set(models):
        yield f"worker {worker.name} has model {name!r}, which the fleet has not: name some of {models}"
    if not worker.speed > 0:
        yield f"speed of worker {worker.name} is {worker.speed}: give a number above 0"
    if worker.sharing.concurrency < 1:
        yield f"sharing.concurrency of worker {worker.name} is {worker.sharing.concurrency}: give at least 1"


def _model_problems(model: ModelSpec) -> Iterator[str]:
    batching = model.batching
    if batching.max_batch_rows < 1:
        yield f"max_batch_rows of {model.name} is {batching.max_batch_rows}: give at least 1"
    if len(batching.preferred_rows) > MOST_PREFERRED or not all(
        0 < rows <= batching.max_batch_rows for rows in batching.preferred_rows
    ):
        yield (
            f"preferred_rows of {model.name} are {batching.preferred_rows}: "
            f"give at most {MOST_PREFERRED} sizes of 1 to {batching.max_batch_rows} rows"
        )
    if not 1 <= batching.default_priority <= batching.priority_levels <= MOST_LEVELS:
        yield (
            f"priority_levels and default_priority of {model.name} are {batching.priority_levels} and "
            f"{batching.default_priority}: give 1 to {MOST_LEVELS} levels and one of them"
        )
    if model.instances < 1:
        yield f"instances of {model.name} is {model.instances}: give at least 1"
    for device, service in model.service.items():
        lengths = {len(service.rows), len(service.device_s), len(service.host_s) or len(service.rows)}
        if len(lengths) > 1 or not service.rows or list(service.rows) != sorted(set(service.rows)):
            yield f"rows of service of {model.name} on {device} are {service.rows}: give each once, ascending"
        if any(seconds < 0 for seconds in (*service.device_s, *service.host_s)):
            yield f"service of {model.name} on {device} has negative times: give seconds of 0 or more"


def _arrival_problems(fleet: FleetSpec, arrivals: Arrivals) -> Iterator[str]:
    if not len(arrivals):
        yield "arrivals are empty: give at least one request"
        return
    for name in ("model", "rows", "work", "key", "deadline_s", "priority", "balancer", "tenant"):
        if len(getattr(arrivals, name)) != len(arrivals):
            yield f"arrivals have {len(arrivals)} times and {len(getattr(arrivals, name))} of {name}: give as many"
            return
    for name, limit in (("model", len(fleet.models)), ("balancer", fleet.balancers)):
        column = getattr(arrivals, name)
        if column.min() < 0 or column.max() >= limit:
            yield f"{name} of arrivals runs from {column.min()} to {column.max()}: give 0 to {limit - 1}"
            return
    most = np.array([model.batching.max_batch_rows for model in fleet.models])[arrivals.model]
    wrong = np.flatnonzero((arrivals.rows < 1) | (arrivals.rows > most))
    if len(wrong):
        k = wrong[0]
        yield f"rows of request {k} is {arrivals.rows[k]}: its model takes 1 to {most[k]} (max_batch_rows)"
    yield from _extras_problems(arrivals)
    if arrivals.clients == 0 and (np.any(np.diff(arrivals.time_s) < 0) or arrivals.time_s[0] < 0):
        yield "time_s of arrivals descends or is negative: sort the requests by time, from 0"


def _extras_problems(arrivals: Arrivals) -> Iterator[str]:
    extras, requests = arrivals.extras, len(arrivals)
    if extras is None:
        return
    for name in ("sequence", "starts", "responses", "first_share", "patience_s"):
        if len(getattr(extras, name)) != requests:
            yield f"arrivals have {requests} times and {len(getattr(extras, name))} of {name}: give as many"
            return
    ranges = {"sequence": (-1, requests - 1), "first_share": (np.nextafter(0, 1), 1), "responses": (0, np.inf)}
    for name, (low, high) in ranges.items():
        column = getattr(extras, name)
        if not low <= column.min() <= column.max() <= high:
            yield f"{name} of arrivals runs from {column.min()} to {column.max()}: give {low:g} to {high:g}"
            return
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
