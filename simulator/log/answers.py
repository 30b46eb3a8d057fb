"""What answers of workers tell that had nothing else to do: the network, how executions vary, what caches save."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from balancer.server.decision_log.recorded import DecisionLog
from policies.base import BoolArray, FloatArray
from simulator.log.caches import Came, Keys
from simulator.spec import CacheSpec, FleetSpec, NetworkSpec, Noise

FEW = 20
"""Requests to idle workers below which nothing is concluded from them."""
_MOST_CV = 1.5
_LEAST_CV = 0.01


class _Answer(NamedTuple):
    place: int
    """Among all that were picked for, in order of time."""
    model: str
    worker: str
    rows: float
    latency_s: float


class Answers:
    """Those of requests that met an idle worker, and, where it executes several at once, had it to themselves to the
    end. The latter are the shorter ones: where what comes later can only wait, all that met nothing are taken."""

    def __init__(self, log: DecisionLog, several: Collection[str]) -> None:
        """`several`: the workers that execute several at once."""
        joined = log.joined()
        picked = np.flatnonzero(joined.pick >= 0)
        begin_s = np.array([log.unix_s(log.decisions[i].run, log.decisions[i].at_s) for i in picked])
        order = np.argsort(begin_s, kind="stable")
        picked, begin_s = picked[order], begin_s[order]
        clean = joined.ok & np.isfinite(joined.latency_s) & (joined.served == joined.pick)
        self._alone: list[_Answer] = []
        self._lag_s: list[float] = []
        came: list[Came] = []
        spans: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
        for place, (index, at_s) in enumerate(zip(picked.tolist(), begin_s.tolist(), strict=True)):
            decision = log.decisions[index]
            name, key = decision.workers.names[decision.pick], decision.request.key
            came.append(Came(name, 0 if key is None else int(np.max(key))))
            if not joined.finished[index]:
                continue
            end_s = log.outcomes[decision.run, int(decision.request.number)].at_s
            spans[name].append((at_s, log.unix_s(decision.run, end_s), place))
            if clean[index]:
                self._lag_s.append(end_s - decision.at_s - float(joined.latency_s[index]))
        for name, own in spans.items():
            for place in _alone(own, to_the_end=name in several):
                index = int(picked[place])
                request = log.decisions[index].request
                if clean[index]:
                    rows, latency_s = float(np.max(request.rows)), float(joined.latency_s[index])
                    self._alone.append(_Answer(place, request.model, name, rows, latency_s))
        self._keys = Keys(came, [one.place for one in self._alone])

    def note(self) -> str:
        """What is missing, in words; empty: nothing."""
        if len(self._alone) >= FEW:
            return ""
        return (
            f"only {len(self._alone)} requests met an idle worker: network and noise are taken to be none, and the "
            "service times cannot be checked against latencies"
        )

    def fitted(self, fleet: FleetSpec) -> FleetSpec:
        """The fleet with network, noise and caches as these answers tell, if its service times are right."""
        models = {model.name: model for model in fleet.models}
        workers = {worker.name: worker for worker in fleet.workers}
        own_s = np.full(len(self._alone), np.nan)
        for number, one in enumerate(self._alone):
            model, worker = models.get(one.model), workers.get(one.worker)
            table = None if model is None or worker is None else model.service.get(worker.device)
            if model is not None and worker is not None and table is not None and model.generation is None:
                rows = min(one.rows, model.batching.max_batch_rows)
                own_s[number] = float(np.interp(rows, table.rows, table.device_s)) / worker.speed
        latency_s, known = np.array([one.latency_s for one in self._alone]), np.isfinite(own_s)
        way_s, cache = 0.0, CacheSpec()
        if np.count_nonzero(known) >= FEW:
            way_s = max(float(np.median((latency_s - own_s)[known])), 0.0)
            if found := self._keys.fit(latency_s, own_s, known):
                way_s, cache = found.way_s, found.cache
                own_s = own_s * (1 - cache.saving * found.hits)
        # The worker's latency ends where the client's does; the outcome is heard later than the execution ends by both.
        lag_s = max(float(np.median(self._lag_s)), 0.0) + way_s / 2 if self._lag_s else NetworkSpec().outcome_s
        names = np.array([one.model for one in self._alone])
        return dataclasses.replace(
            fleet,
            network=NetworkSpec(to_worker_s=way_s / 2, to_client_s=way_s / 2, outcome_s=lag_s),
            cache=cache,
            models=tuple(
                dataclasses.replace(model, noise=_noise(latency_s - way_s, own_s, known & (names == model.name)))
                for model in fleet.models
            ),
        )


def _alone(spans: list[tuple[float, float, int]], *, to_the_end: bool) -> list[int]:
    """The places of those that began when all before had ended, and where asked ended before another began."""
    found, latest_s = [], -math.inf
    starts_s = [begin_s for begin_s, _, _ in spans[1:]] + [math.inf]
    for (begin_s, end_s, place), next_s in zip(spans, starts_s, strict=True):
        if begin_s >= latest_s and (next_s >= end_s or not to_the_end):
            found.append(place)
        latest_s = max(latest_s, end_s)
    return found


def _noise(execution_s: FloatArray, own_s: FloatArray, chosen: BoolArray) -> Noise:
    """Of executions alone on their worker, beside what is expected of them."""
    if np.count_nonzero(chosen) < FEW:
        return Noise()
    factor = np.maximum(execution_s[chosen], 0.0) / own_s[chosen]
    low, high = np.quantile(factor, [0.01, 0.99])
    kept = np.clip(factor, low, high)
    cv = min(float(kept.std() / kept.mean()), _MOST_CV) if kept.mean() > 0 else 0.0
    return Noise("lognormal", cv) if cv >= _LEAST_CV and math.isfinite(cv) else Noise()
