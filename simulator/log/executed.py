"""Service times, network, noise and caches of a log's fleet, by what its executions took (`stations`)."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.stats import norm

from balancer.server.decision_log.recorded import DecisionLog
from policies.base import FloatArray
from simulator.log.caches import CacheFit, Came, Ran, fit
from simulator.log.service import Executions, service_time, worked
from simulator.log.stations import (
    EXACT,
    MOST_AT_ONCE,
    Answered,
    Errors,
    Execution,
    Room,
    Sharing,
    executions_of,
    sharings,
)
from simulator.log.workload import level_of
from simulator.spec import CacheSpec, DeviceSpec, FleetSpec, ModelSpec, NetworkSpec, Noise, ServiceTime

FEW = 20
"""Executions below which nothing is concluded from them."""
MOST_REQUESTS = 50_000
"""That need be looked at."""
_MOST_TO_CHOOSE_BY = 6000
"""Of each kind of device, to find how many executions it has at once."""
_ROUNDS, _CLOSE = 6, 0.01
_CERTAIN = 5.0
"""Standard errors from none at which requests are taken to differ."""
_SURE = 2.0
"""Standard errors from none at which a worker's speed is taken to be another than its kind's."""
_MOST_CV = 4.0
_LEAST_CV = 0.01
_DRAWN = 5001
"""So many quantiles stand for a distribution."""
_UNLIKELY = 0.1
_LEAST_S, _LEAST_JITTER = 1e-6, 0.01
"""The latter beside the shortest execution."""
_DELAY, _NORMAL = float(np.log(3)), 1.349
"""How far the quartiles lie apart of exponential delays, over their mean, and of what is normal, over its deviation."""
_SQUARED = 3.0
"""Relative error of the square of that, over the root of how many delays there are."""
_OUTERMOST = 0.002
"""Share of what executions took, at each end, that is cut off where noise is measured."""

Kind = tuple[str, str]
"""A model on a kind of device."""
_ByWorker = Mapping[str, Sequence[Answered]]


class Executed:
    """What a log tells of the executions of models whose answers come at once."""

    def __init__(self, log: DecisionLog, fleet: FleetSpec) -> None:
        """`fleet`: its models, instances, largest batches and kinds of devices are known, and no more."""
        self._models = {model.name: model for model in fleet.models}
        devices = {worker.name: worker.device for worker in fleet.workers}
        self._rooms = {
            worker.name: {
                model.name: Room(model.batching.max_batch_rows, model.instances)
                for model in fleet.models
                if fleet.may_hold(worker, model.name) and model.generation is None
            }
            for worker in fleet.workers
        }
        joined = log.joined()
        begun = sorted((log.unix_s(d.run, d.at_s), index) for index, d in enumerate(log) if joined.pick[index] >= 0)
        self._lag_s: list[float] = []
        self._answered: defaultdict[str, defaultdict[str, list[Answered]]] = defaultdict(lambda: defaultdict(list))
        begun = begun[:MOST_REQUESTS]
        counted = [one for one in log.service if begun and log.unix_s(one.run, one.at_s) <= begun[-1][0]]
        self._counted = worked(dataclasses.replace(log, service=counted))
        for at_s, index in begun:
            decision, request = log.decisions[index], log.decisions[index].request
            name = decision.workers.names[joined.served[index] if joined.served[index] >= 0 else decision.pick]
            latency_s = float(joined.latency_s[index])
            if (decision.run, int(request.number)) in log.questions or not (
                joined.ok[index] and np.isfinite(latency_s) and request.model in self._rooms.get(name, {})
            ):
                continue
            model = self._models[request.model]
            rows = max(1.0, min(float(np.max(request.rows)), model.batching.max_batch_rows))
            level = level_of(request) or model.batching.default_priority
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
        errors, noise = self._errors(way_s)
        found = {device: self._likeliest(own, way_s, errors) for device, own in self._answered.items()}
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
        shared = {device: DeviceSpec(each.at_once, each.interference) for device, each in found.items()}
        spreads = [
            _Spread(noise[model.name], 0.0) if model.name in noise else _spread(model.name, alike, tables)
            for model in models
        ]
        jitter_s = min(errors.jitter_s, way_s / 2)
        self.work = {model.name: spread.work for model, spread in zip(models, spreads, strict=True) if spread.work}
        return dataclasses.replace(
            fleet,
            network=NetworkSpec(way_s / 2 - jitter_s, to_client_s=way_s / 2, jitter_s=jitter_s, outcome_s=lag_s),
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
            for name, answered in (each for own in self._answered.values() for each in own.items()):
                seen: defaultdict[str, list[Execution]] = defaultdict(list)
                for one in executions_of(answered, self._rooms[name], MOST_AT_ONCE, way_s):
                    if any(begin_s < one.end_s <= end_s for begin_s, end_s in self._windows(name)):
                        seen[one.model].append(one)
                for model, every in seen.items():
                    counted = self._counted[name].models.get(model, Executions())
                    # Its counters are a report old when they are recorded: the last ones are not in them.
                    rows = np.cumsum([one.rows for one in every])
                    own = every[: int(np.searchsorted(rows, counted.rows, side="right"))]
                    surplus_s += sum(one.end_s - one.begin_s for one in own) - counted.seconds
                    came += sum(one.begin_s <= one.requests[0].came_s for one in own)
            if came < FEW:
                break
            self._came, was_s, way_s = came, way_s, max(way_s + surplus_s / came, 0.0)
            if abs(way_s - was_s) <= _CLOSE * way_s:
                break
        return way_s

    def _windows(self, worker: str) -> Sequence[tuple[float, float]]:
        return self._counted[worker].windows if worker in self._counted else ()

    def _errors(self, way_s: float) -> tuple[Errors, Mapping[str, float]]:
        """By what executions of one request that had their worker to themselves differ from others of their size: by
        a share of what they take, which is each model's own, and by what the way does. No jitter where that may be
        chance, or no model takes now long and now short, or it would be more than the way.

        Returns those errors, and where there is jitter the coefficient of variation of each model's executions.
        """
        alone: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
        for name, answered in (each for own in self._answered.values() for each in own.items()):
            for one in executions_of(answered, self._rooms[name], MOST_AT_ONCE, way_s):
                if one.alone and one.new_keys and len(one.requests) == 1:
                    alone[one.model, name, one.rows].append(one.end_s - one.begin_s)
        several = {size: own for size, own in alone.items() if len(own) >= FEW}
        if not several:
            return EXACT, {}
        of, models = np.unique([model for model, _, _ in several], return_inverse=True)
        usual_s = np.array([np.median(own) for own in several.values()])
        # Quartiles: who comes before whom on the way may come after, and then seems to have taken what the other did.
        apart_s = np.array([np.subtract(*np.quantile(own, [0.75, 0.25])) for own in several.values()])
        squares = np.square(apart_s / _DELAY)
        weights = np.sqrt(list(map(len, several.values()))) / np.maximum(_SQUARED * squares, _LEAST_S**2)
        shares = np.where(models[:, None] == np.arange(len(of)), np.square(usual_s)[:, None], 0.0)
        columns = np.column_stack([shares, np.ones(len(several))]) * weights[:, None]
        found, _ = nnls(columns, squares * weights)
        doubt = np.sqrt(np.linalg.pinv(columns.T @ columns)[-1, -1])
        jitter_s = float(np.sqrt(found[-1]))
        told = np.linalg.matrix_rank(columns) == columns.shape[1] and found[-1] > _SURE * doubt
        if not told or not _LEAST_JITTER * usual_s.min() < jitter_s < way_s:
            return EXACT, {}
        noise = np.sqrt(found[:-1]) * _DELAY / _NORMAL
        return Errors(float(noise.mean()), jitter_s), dict(zip(of.tolist(), map(_least_cv, noise), strict=True))

    def _likeliest(self, answered: _ByWorker, way_s: float, errors: Errors) -> Sharing:
        """Of workers of one kind, where the way is known."""
        part = _part(answered)
        most = max(sum(room.instances for room in self._rooms[name].values()) for name in answered)
        numbers = range(1, min(most, MOST_AT_ONCE) + 1)
        tried = (each for at_once in numbers for each in sharings(part, self._rooms, at_once, way_s, errors))
        at_once = max(tried, key=_likelihood).at_once
        return max(sharings(answered, self._rooms, at_once, way_s, errors), key=_likelihood)


_likelihood = attrgetter("log_likelihood")


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
    """Positions of its requests in what `_came` lists."""
    hit: float = 0.0
    """The probability that it was the cheaper for a cache."""


_Alike = Mapping[tuple[str, str, int], Sequence[_Work]]
"""By model, kind of device, and rows."""


def _alike(found: Mapping[str, Sharing]) -> _Alike:
    alike: defaultdict[tuple[str, str, int], list[_Work]] = defaultdict(list)
    first = 0
    for device, sharing in found.items():
        for (worker, one), seconds in zip(sharing.found, sharing.work_s().tolist(), strict=True):
            places = range(first, first + len(one.requests))
            alike[one.model, device, one.rows].append(_Work(worker, one, seconds, places))
            first = places.stop
    return alike


def _came(found: Mapping[str, Sharing]) -> list[Came]:
    """To each worker in the order in which it executed them."""
    executed = (each for sharing in found.values() for each in sharing.found)
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
        expected_s = _expected_s(tables[model, device], rows)
        for one in own:
            seconds[one.worker].append((expected_s, one.seconds))
    for worker, both in seconds.items():
        expected_s, taken_s = np.array(both).T
        speed = float(expected_s.sum() / taken_s.sum())
        doubt = float(np.sqrt(np.square(taken_s - expected_s / speed).sum()) / taken_s.sum())
        yield worker, speed if abs(np.log(speed)) > _SURE * doubt else 1.0


def _expected_s(table: ServiceTime, rows: int) -> float:
    return float(np.interp(rows, table.rows, table.device_s))


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
            expected_s = _expected_s(tables[model, device], rows)
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
    squares = _squares(np.array(factors))
    variance = float(squares.mean())
    whole = float(np.interp(variance, *_cut_and_whole()))
    doubt = float(squares.std()) / np.sqrt(len(squares)) * whole / max(variance, _LEAST_CV**2)
    return whole, max(doubt, _LEAST_CV**2)


def _squares(factors: FloatArray) -> FloatArray:
    """Squared deviations from the mean, over its square; the outermost factors are clipped first."""
    kept = np.clip(factors, *np.quantile(factors, [_OUTERMOST, 1 - _OUTERMOST]))
    found: FloatArray = np.square(kept / kept.mean() - 1)
    return found


@lru_cache
def _cut_and_whole() -> tuple[FloatArray, FloatArray]:
    """Variances of lognormal factors of mean 1: as `_squares` finds them, and as they are."""
    whole = np.square(np.linspace(0.0, _MOST_CV, 41))
    normal = norm.ppf((np.arange(_DRAWN) + 0.5) / _DRAWN)
    cut = np.array([_squares(np.exp(np.sqrt(np.log1p(each)) * normal)).mean() for each in whole])
    return cut, whole


def _cv(variance: float) -> float:
    return _least_cv(min(float(np.sqrt(variance)), _MOST_CV))


def _least_cv(cv: float) -> float:
    return float(cv) if cv >= _LEAST_CV else 0.0
