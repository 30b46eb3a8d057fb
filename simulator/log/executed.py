"""Service times, network, noise and caches of a log's fleet, by what its executions took (`stations`)."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from balancer.server.decision_log.recorded import DecisionLog
from simulator.log.caches import CacheFit, Came, Ran, fit
from simulator.log.service import Executions, WorkerExecutions, service_time
from simulator.log.stations import MOST_AT_ONCE, Answered, Execution, Room, Sharing, executions_of, sharings
from simulator.spec import CacheSpec, DeviceSpec, FleetSpec, ModelSpec, NetworkSpec, Noise, ServiceTime

FEW = 20
"""Executions below which nothing is concluded from them."""
MOST_REQUESTS = 50_000
"""That need be looked at."""
_MOST_TO_CHOOSE_BY = 6000
"""Of each kind of device, to find how many executions it has at once."""
_ROUNDS = 6
_CERTAIN = 5.0
"""Standard errors from none at which requests are taken to differ."""
_SURE = 2.0
"""Standard errors from none at which a worker's speed is taken to be another than its kind's."""
_MOST_CV = 1.5
_LEAST_CV = 0.01
_UNLIKELY = 0.1
_OUTERMOST = 0.002
"""Share of what executions took, at each end, that is cut off where noise is measured."""

Kind = tuple[str, str]
"""A model on a kind of device."""
_ByWorker = Mapping[str, Sequence[Answered]]


class _Found(NamedTuple):
    device: str
    sharing: Sharing


class Executed:
    """What a log tells of the executions of models whose answers come at once."""

    def __init__(self, log: DecisionLog, fleet: FleetSpec, counted: Mapping[str, WorkerExecutions]) -> None:
        """`fleet`: its models, instances, largest batches and kinds of devices are known, and no more; `counted`: by
        worker, as it reported."""
        self._counted = counted
        self._models = {model.name: model for model in fleet.models}
        devices = {worker.name: worker.device for worker in fleet.workers}
        self._rooms = {
            worker.name: {
                model.name: Room(model.batching.max_batch_rows, model.instances)
                for model in fleet.models
                if fleet.may_hold(worker, model.name)
            }
            for worker in fleet.workers
        }
        joined = log.joined()
        begun = sorted((log.unix_s(d.run, d.at_s), index) for index, d in enumerate(log) if joined.pick[index] >= 0)
        self._lag_s: list[float] = []
        self._answered: defaultdict[str, defaultdict[str, list[Answered]]] = defaultdict(lambda: defaultdict(list))
        for at_s, index in begun[:MOST_REQUESTS]:
            decision, request = log.decisions[index], log.decisions[index].request
            name = decision.workers.names[joined.served[index] if joined.served[index] >= 0 else decision.pick]
            model, latency_s = self._models.get(request.model), float(joined.latency_s[index])
            knows = joined.ok[index] and np.isfinite(latency_s) and request.model in self._rooms.get(name, {})
            if model is None or model.generation is not None or not knows:
                continue
            rows = min(float(np.max(request.rows)), model.batching.max_batch_rows)
            level = int(np.max(request.priority)) or model.batching.default_priority
            key = 0 if request.key is None else int(np.max(request.key))
            answered = Answered(request.model, rows, level, at_s, at_s + latency_s, key)
            self._answered[devices[name]][name].append(answered)
            self._lag_s.append(log.outcomes[decision.run, int(request.number)].at_s - decision.at_s - latency_s)
        self._came = 0
        self.work: dict[str, float] = {}
        """After `fitted`: by how much requests to a model differ, as a coefficient of variation."""

    def note(self) -> str:
        """What is missing, in words; empty: nothing. After `fitted`."""
        if self._came >= FEW:
            return ""
        return "what workers counted does not tell how long the way to them is: the network is taken to take no time"

    def fitted(self, fleet: FleetSpec, measured: frozenset[Kind]) -> FleetSpec:
        """The fleet with all that executions tell; the times of kinds that are measured are left as they are."""
        way_s = self._way_s()
        found = [self._likeliest(device, own, way_s) for device, own in self._answered.items()]
        alike = _alike(found)
        cached = fit(_came(found), list(_ran(alike)))
        if cached is not None:
            alike = _cold(alike, cached)
        counted = {kind: table for kind, table in _times(alike, self._models).items() if kind not in measured}
        speeds = dict(_speeds(alike, counted))
        alike = {
            group: [one._replace(seconds=one.seconds * speeds.get(one.worker, 1.0)) for one in own]
            for group, own in alike.items()
        }
        times = _times(alike, self._models)
        models = tuple(
            dataclasses.replace(
                model,
                service={
                    device: was if (model.name, device) in measured else times.get((model.name, device), was)
                    for device, was in model.service.items()
                },
            )
            for model in fleet.models
        )
        tables = {(model.name, device): table for model in models for device, table in model.service.items()}
        lag_s = max(float(np.median(self._lag_s)), 0.0) + way_s / 2 if self._lag_s else NetworkSpec().outcome_s
        shared = {each.device: DeviceSpec(each.sharing.at_once, each.sharing.interference) for each in found}
        spreads = [_spread(model.name, alike, tables) for model in models]
        self.work = {model.name: spread.work for model, spread in zip(models, spreads, strict=True) if spread.work}
        return dataclasses.replace(
            fleet,
            network=NetworkSpec(to_worker_s=way_s / 2, to_client_s=way_s / 2, outcome_s=lag_s),
            cache=CacheSpec() if cached is None else cached.cache,
            models=tuple(
                dataclasses.replace(model, noise=Noise("lognormal", spread.noise) if spread.noise else Noise())
                for model, spread in zip(models, spreads, strict=True)
            ),
            workers=tuple(
                dataclasses.replace(
                    worker,
                    speed=speeds.get(worker.name, 1.0),
                    sharing=shared.get(worker.device, worker.sharing),
                )
                for worker in fleet.workers
            ),
        )

    def _way_s(self) -> float:
        """What answers take beyond what workers counted from when an instance took them.

        An execution that began as its request came seems to take longer by that, and no other does.
        """
        way_s = 0.0
        for _ in range(_ROUNDS):
            surplus_s, came = 0.0, 0
            for own in self._answered.values():
                for name, answered in own.items():
                    if name in self._counted and self._counted[name].windows:
                        counted_s = sum(
                            executions.seconds
                            for model, executions in self._counted[name].models.items()
                            if model in self._rooms[name]
                        )
                        seen = [
                            one
                            for one in executions_of(answered, self._rooms[name], MOST_AT_ONCE, way_s)
                            if any(begin_s < one.end_s <= end_s for begin_s, end_s in self._counted[name].windows)
                        ]
                        surplus_s += sum(one.end_s - one.begin_s for one in seen) - counted_s
                        came += sum(one.begin_s <= one.requests[0].came_s for one in seen)
            if came < FEW:
                break
            self._came, way_s = came, max(way_s + surplus_s / came, 0.0)
        return way_s

    def _likeliest(self, device: str, answered: _ByWorker, way_s: float) -> _Found:
        """Of workers of one kind, where the way is known."""
        part = _part(answered)
        found = max((self._at(device, part, number, way_s) for number in self._numbers(answered)), key=_likelihood)
        return self._at(device, answered, found.sharing.at_once, way_s)

    def _numbers(self, answered: _ByWorker) -> range:
        """How many executions a device may have at once."""
        most = max(sum(room.instances for room in self._rooms[name].values()) for name in answered)
        return range(1, min(most, MOST_AT_ONCE) + 1)

    def _at(self, device: str, answered: _ByWorker, at_once: int, way_s: float) -> _Found:
        tried = sharings(answered, self._rooms, at_once, way_s)
        return _Found(device, max(tried, key=lambda sharing: sharing.log_likelihood))


def _likelihood(found: _Found) -> float:
    return found.sharing.log_likelihood


def _part(answered: _ByWorker) -> _ByWorker:
    """The first answers of some workers, enough to choose by."""
    part, left = dict[str, Sequence[Answered]](), _MOST_TO_CHOOSE_BY
    for name, own in answered.items():
        if left > 0:
            part[name], left = own[:left], left - len(own)
    return part


class _Work(NamedTuple):
    worker: str
    execution: Execution
    seconds: float
    """Alone on its device."""
    places: range
    """Of its requests, in the order in which executions ended."""
    hit: float = 0.0
    """The probability that it was the cheaper for a cache."""


_Alike = Mapping[tuple[str, str, int], Sequence[_Work]]
"""By model, kind of device, and rows."""


def _alike(found: Iterable[_Found]) -> _Alike:
    alike: defaultdict[tuple[str, str, int], list[_Work]] = defaultdict(list)
    first = 0
    for device, sharing in found:
        for (worker, one), seconds in zip(sharing.found, sharing.work_s().tolist(), strict=True):
            places = range(first, first + len(one.requests))
            alike[one.model, device, one.rows].append(_Work(worker, one, seconds, places))
            first = places.stop
    return alike


def _came(found: Iterable[_Found]) -> list[Came]:
    """To each worker in the order in which it executed them."""
    executed = (each for _, sharing in found for each in sharing.found)
    return [Came(worker, request.key) for worker, one in executed for request in one.requests]


def _ran(alike: _Alike) -> Iterator[Ran]:
    """Workers of one kind need not be as fast: sizes are each worker's own."""
    sizes: dict[tuple[str, str, int], int] = {}
    for (model, _, rows), own in alike.items():
        for one in own:
            yield Ran(one.places, sizes.setdefault((one.worker, model, rows), len(sizes)), one.seconds)


def _cold(alike: _Alike, cached: CacheFit) -> _Alike:
    """As they would have been without hits."""
    hits, left = iter(cached.hits.tolist()), 1 - cached.cache.saving
    found: dict[tuple[str, str, int], list[_Work]] = {}
    for group, own in alike.items():
        # Either it hit or it did not: the mean of both.
        found[group] = [
            one._replace(seconds=one.seconds * (hit / left + 1 - hit), hit=hit)
            for one, hit in zip(own, hits, strict=False)
        ]
    return found


def _times(alike: _Alike, models: Mapping[str, ModelSpec]) -> dict[Kind, ServiceTime]:
    found: dict[Kind, Executions] = {}
    for (model, device, rows), own in alike.items():
        most = models[model].batching.max_batch_rows
        executions = found.setdefault((model, device), Executions(most, models[model].instances))
        executions.add(rows, len(own), sum(one.seconds for one in own))
    return {kind: service_time(executions) for kind, executions in found.items() if executions.count >= FEW}


def _speeds(alike: _Alike, tables: Mapping[Kind, ServiceTime]) -> Iterator[tuple[str, float]]:
    """By worker, beside its kind; where that may be chance, it is as fast."""
    seconds: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for (model, device, rows), own in alike.items():
        if (model, device) not in tables:
            continue
        table = tables[model, device]
        expected_s = float(np.interp(rows, table.rows, table.device_s))
        for one in own:
            seconds[one.worker].append((expected_s, one.seconds))
    for worker, both in seconds.items():
        expected_s, taken_s = np.array(both).T
        speed = float(expected_s.sum() / taken_s.sum())
        doubt = float(np.sqrt(np.square(taken_s - expected_s / speed).sum()) / taken_s.sum())
        yield worker, speed if abs(np.log(speed)) > _SURE * doubt else 1.0


class _Spread(NamedTuple):
    noise: float
    """Coefficient of variation of what executions take, whatever is in them."""
    work: float
    """And of what their requests are: of several in one execution, some are more and some are less."""


def _spread(name: str, alike: _Alike, tables: Mapping[Kind, ServiceTime]) -> _Spread:
    """(1 + noise²) (1 + work² / n) - 1 is the variance for n equal requests in an execution."""
    factors: defaultdict[int, list[float]] = defaultdict(list)
    for (model, device, rows), own in alike.items():
        if model == name:
            table = tables[model, device]
            expected_s = float(np.interp(rows, table.rows, table.device_s))
            for one in own:
                # Where a hit is as likely as none, what it took is neither.
                if one.hit < _UNLIKELY:
                    requests = rows**2 / sum(each.rows**2 for each in one.execution.requests)
                    factors[round(requests)].append(one.seconds / expected_s)
    several = [(requests, *_variance(own)) for requests, own in factors.items() if len(own) >= FEW]
    if not several:
        return _Spread(0.0, 0.0)
    requests, variance, doubt = np.array(several, np.float64).T
    columns = np.stack([np.ones(len(requests)), 1 / requests], axis=1) / doubt[:, None]
    (of_noise, of_work), _ = nnls(columns, variance / doubt)
    sure = np.linalg.pinv(columns.T @ columns)[1, 1]
    if len(several) == 1 or of_work < _CERTAIN * np.sqrt(sure):
        return _Spread(_cv(float(np.average(variance, weights=doubt**-2))), 0.0)
    return _Spread(_cv(float(of_noise)), _cv(float(of_work / (1 + of_noise))))


def _variance(factors: Sequence[float]) -> tuple[float, float]:
    """Over the squared mean; and its standard error."""
    kept = np.clip(factors, *np.quantile(factors, [_OUTERMOST, 1 - _OUTERMOST]))
    squares = np.square(kept / kept.mean() - 1)
    return float(squares.mean()), max(float(squares.std()) / np.sqrt(len(kept)), _LEAST_CV**2)


def _cv(variance: float) -> float:
    cv = min(float(np.sqrt(variance)), _MOST_CV)
    return cv if cv >= _LEAST_CV else 0.0
