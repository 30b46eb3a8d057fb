"""Service times, network, noise and caches of a log's fleet, by what its executions took (`stations`)."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from balancer.server.decision_log.recorded import DecisionLog
from simulator.log.caches import CacheFit, Came, Ran, fit
from simulator.log.service import Executions, service_time
from simulator.log.stations import MOST_AT_ONCE, Answered, Execution, Room, Sharing, sharings
from simulator.spec import CacheSpec, DeviceSpec, FleetSpec, ModelSpec, NetworkSpec, Noise, ServiceTime

FEW = 20
"""Executions below which nothing is concluded from them."""
MOST_REQUESTS = 50_000
"""That need be looked at."""
_MOST_TO_CHOOSE_BY = 6000
"""Of each kind of device, to find how many executions it has at once, and the way."""
_GUESSES, _CLIMBS = 4, 6
_FAR = 0.6
"""By how much less likely an answer is, as a logarithm, for a number at once not to be looked at more closely."""
_FIRST_STEP, _LEAST_STEP_S = 0.15, 2e-5
_LEAST_S = 1e-6
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
    way_s: float


class Executed:
    """What a log tells of the executions of models whose answers come at once."""

    def __init__(self, log: DecisionLog, fleet: FleetSpec, counted: Mapping[tuple[str, str], Executions]) -> None:
        """`fleet`: its models, instances, largest batches and kinds of devices are known, and no more; `counted`: by
        worker and model, as workers reported."""
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
        self._idle = 0

    def note(self) -> str:
        """What is missing, in words; empty: nothing. After `fitted`."""
        if self._idle >= FEW:
            return ""
        return f"only {self._idle} requests met an idle worker: the network is taken to take no time"

    def fitted(self, fleet: FleetSpec, measured: frozenset[Kind]) -> FleetSpec:
        """The fleet with all that executions tell; the times of kinds that are measured are left as they are."""
        found, way_s = list[_Found](), 0.0
        # There is one network: the kind that tells most says how long it takes.
        for device, own in sorted(self._answered.items(), key=_answers_of, reverse=True):
            found.append(self._likeliest(device, own, way_s) if found else self._with_way(device, own))
            way_s = found[0].way_s
        alike = _alike(found)
        self._idle = sum(one.execution.idle for own in alike.values() for one in own)
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
        return dataclasses.replace(
            fleet,
            network=NetworkSpec(to_worker_s=way_s / 2, to_client_s=way_s / 2, outcome_s=lag_s),
            cache=CacheSpec() if cached is None else cached.cache,
            models=tuple(dataclasses.replace(model, noise=_noise(model.name, alike, tables)) for model in models),
            workers=tuple(
                dataclasses.replace(
                    worker,
                    speed=speeds.get(worker.name, 1.0),
                    sharing=shared.get(worker.device, worker.sharing),
                )
                for worker in fleet.workers
            ),
        )

    def _with_way(self, device: str, answered: _ByWorker) -> _Found:
        """Of workers of one kind, and how long the way takes: what makes the times of the answers likeliest."""
        part, best = _part(answered), list[_Found]()
        for at_once in self._numbers(answered):
            tried, way_s = list[_Found](), 0.0
            for _ in range(_GUESSES):
                tried.append(self._at(device, part, at_once, way_s))
                way_s = max(way_s + _later_s(_alike(tried[-1:]), self._counted), 0.0)
            best.append(max(tried, key=_likelihood))
        enough = max(map(_likelihood, best)) - _FAR * sum(map(len, part.values()))
        found = max((self._climbed(part, one) for one in best if _likelihood(one) >= enough), key=_likelihood)
        return self._at(device, answered, found.sharing.at_once, found.way_s)

    def _climbed(self, part: _ByWorker, best: _Found) -> _Found:
        """With the way that is likeliest near there."""
        step_s = max(_FIRST_STEP * best.way_s, _LEAST_STEP_S)
        for _ in range(_CLIMBS):
            ways_s = (best.way_s + step_s, max(best.way_s - step_s, 0.0))
            tried = [self._at(best.device, part, best.sharing.at_once, way_s) for way_s in ways_s]
            if max(map(_likelihood, tried)) > _likelihood(best):
                best = max(tried, key=_likelihood)
            else:
                step_s /= 2
        return best

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
        return _Found(device, max(tried, key=lambda sharing: sharing.log_likelihood), way_s)


def _answers_of(kind: tuple[str, _ByWorker]) -> int:
    return sum(map(len, kind[1].values()))


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
    for device, sharing, _ in found:
        for (worker, one), seconds in zip(sharing.found, sharing.work_s().tolist(), strict=True):
            places = range(first, first + len(one.requests))
            alike[one.model, device, one.rows].append(_Work(worker, one, seconds, places))
            first = places.stop
    return alike


def _came(found: Iterable[_Found]) -> list[Came]:
    """To each worker in the order in which it executed them."""
    executed = (each for _, sharing, _ in found for each in sharing.found)
    return [Came(worker, request.key) for worker, one in executed for request in one.requests]


def _later_s(alike: _Alike, counted: Mapping[tuple[str, str], Executions]) -> float:
    """By how much executions seem to take longer than they do, where they began as a request came: the network.

    Beside what workers counted, and beside those that began with one that had waited.
    """
    sizes: defaultdict[tuple[str, str, int], list[_Work]] = defaultdict(list)
    for (model, _, rows), own in alike.items():
        for one in own:
            sizes[one.worker, model, rows].append(one)
    later_s, variance = list[float](), list[float]()
    for (worker, model, rows), own in sizes.items():
        known = counted.get((worker, model), Executions()).batches.get(rows, (0, 0.0))
        lasted_s = np.array([one.execution.end_s - one.execution.begin_s for one in own])
        came = np.array([one.execution.begin_s <= one.execution.requests[0].came_s for one in own]).mean()
        if min(known[0], len(own)) >= FEW and came > 0:
            later_s.append(float(lasted_s.mean() - known[1] / known[0]) / came)
            variance.append(float(lasted_s.var() * (1 / len(own) + 1 / known[0])) / came**2)
        took_s, idle = np.array([one.seconds for one in own]), np.array([one.execution.idle for one in own])
        if min(np.count_nonzero(idle), np.count_nonzero(~idle)) >= FEW:
            later_s.append(float(took_s[idle].mean() - took_s[~idle].mean()))
            variance.append(float(sum(took_s[part].var() / np.count_nonzero(part) for part in (idle, ~idle))))
    return float(np.average(later_s, weights=1 / (np.array(variance) + _LEAST_S**2))) if later_s else 0.0


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


def _noise(name: str, alike: _Alike, tables: Mapping[Kind, ServiceTime]) -> Noise:
    factors = []
    for (model, device, rows), own in alike.items():
        if model == name:
            table = tables[model, device]
            expected_s = float(np.interp(rows, table.rows, table.device_s))
            # Where a hit is as likely as none, what it took is neither.
            factors += [one.seconds / expected_s for one in own if one.hit < _UNLIKELY]
    if len(factors) < FEW:
        return Noise()
    kept = np.clip(factors, *np.quantile(factors, [_OUTERMOST, 1 - _OUTERMOST]))
    cv = min(float(kept.std() / kept.mean()), _MOST_CV)
    return Noise("lognormal", cv) if cv >= _LEAST_CV else Noise()
