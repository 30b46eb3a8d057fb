"""The requests of a run: how often, which models, how large, by when; from a seed.

Every part (times, models, rows, ...) has a generator of its own, and every request its own draws. So another mix leaves
the times as they are, and a longer run begins as a shorter one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.load.arrivals import FloatArray
from balancer.load.workload import streams
from policies.base import IntArray, UintArray
from simulator.arrivals import Arrivals, Extras, Prompts
from simulator.spec import FleetSpec
from simulator.workload.draws import ONE, Distribution, Keys, Shares, mean_rows, whole_rows
from simulator.workload.extras import Patience, Sequences, Stream, numbered, place_of_key
from simulator.workload.prompts import PromptText, drawn
from simulator.workload.times import Poisson, Process, draw_times
from simulator.workload.trace import Recorded

_PARTS = 12
_SAMPLE = 20_000
"""Requests that means of prompts are taken over, where those are drawn."""
_STEADY = Poisson()
_ALL_ZERO = Shares({0: 1.0})


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    name: str
    share: float = 1.0
    """Its share of the requests is this over the sum over models; a trace that names models goes before."""
    rows: Distribution = ONE
    """Batch sizes: rounded up, capped by the model's `max_batch_rows`; a trace with sizes goes before."""
    work: Distribution = ONE
    """Hidden work, over its own mean; a trace with a work column goes before."""
    deadline_s: float | Shares = math.inf
    """From arrival, or several such, each with its share of the requests; infinite: none."""
    sequences: Sequences | None = None
    """Stateful sequences; their keys go before all others."""
    stream: Stream | None = None
    """Several responses to each request; their number is work on top of `work`."""
    patience: Patience | None = None
    """When clients give up; None: never."""
    prompts: PromptText | None = None
    """What a model that generates is asked; it generates as many tokens as `stream` has responses, else 1."""

    @property
    def extra(self) -> bool:
        return self.sequences is not None or self.stream is not None or self.patience is not None


@dataclass(frozen=True, slots=True)
class PromptDemand:
    """Means over the requests to a model that generates."""

    tokens: float
    output: float
    pairs: float
    """Of a prompt's token and one before it."""
    context: float
    """Tokens before each that is generated, over all of a request."""


@dataclass(frozen=True, slots=True)
class Demand:
    share: float
    rows: float
    row_work: float
    """Mean of rows times work: more than `rows` where the large requests are the long ones."""
    prompts: PromptDemand | None = None
    """None: the model does not generate."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests without end; `arrivals` cuts off as many as wanted."""

    rate_per_s: float
    """Long-run mean over all models; unused in a closed loop."""
    traffic: tuple[ModelTraffic, ...]
    """By model; the fleet's others get no requests."""
    process: Process = _STEADY
    """When they arrive, where no trace tells."""
    recorded: Recorded | None = None
    keys: Keys | None = None
    """Routing keys; None: no request has one."""
    priorities: Shares = _ALL_ZERO
    """Shares of priority numbers; 0 is the model's default."""
    tenants: Shares = _ALL_ZERO
    balancers: tuple[float, ...] = ()
    """Weight of each balancer, by which requests fall to it; empty: to all alike."""
    clients: int = 0
    """Above 0: a closed loop of so many clients, all of whom send at 0."""

    def at_rate(self, rate_per_s: float) -> Workload:
        """The same at another mean rate; lengths of bursts and periods stay in seconds, a trace's shrink or grow."""
        return replace(self, rate_per_s=rate_per_s)

    def arrivals(self, fleet: FleetSpec, requests: int, seed: int) -> Arrivals:
        """The first `requests` requests of the run with this seed; equal for equal arguments.

        Raises:
            ValueError: no request is asked for, or a model or balancer is not the fleet's; named, with the remedy.
        """
        if requests < 1:
            raise ValueError(f"requests is {requests}: ask for at least 1")
        times, models, rows, work, keys, priorities, tenants, balancers, deadlines, *extra = streams(seed, _PARTS)
        position: IntArray = np.arange(requests)
        if self.clients:
            time_s = np.zeros(requests)
        elif self.recorded is None:
            time_s = draw_times(self.process, self.rate_per_s, requests, times)
        else:
            time_s, position = self.recorded.window(self.rate_per_s, requests, times)
        model = self._models(fleet, position, models.random(requests))
        u_rows = rows.random(requests)
        drawn_rows, drawn_work = self._sizes(fleet, model, position, u_rows, work.random(requests))
        deadline_s = self._deadlines_s(fleet, model, deadlines.random(requests))
        drawn_keys = np.zeros(requests, np.uint64) if self.keys is None else self.keys.draw(requests, keys)
        levels = self.priorities.quantile(priorities.random(requests)).astype(np.int16)
        owners = self.tenants.quantile(tenants.random(requests)).astype(np.int16)
        key = self._recorded_or("keys", position, drawn_keys)
        extras = None
        if any(one.extra for one in self.traffic):
            extras, key = self._extras(fleet, model, key, u_rows, extra)
            drawn_work = drawn_work * self._stream_work(fleet, model, extras)
        prompts = None
        if fleet.generates:
            prompts = self._prompts(fleet, model, position, key, u_rows, extras)
        return Arrivals(
            time_s=time_s,
            model=model,
            rows=drawn_rows,
            work=drawn_work,
            key=key,
            deadline_s=self._recorded_or("deadline_s", position, deadline_s),
            priority=self._recorded_or("priorities", position, levels),
            balancer=self._balancers(fleet, balancers.random(requests)),
            tenant=self._recorded_or("tenants", position, owners),
            extras=extras,
            prompts=prompts,
            clients=self.clients,
        )

    def _prompts(
        self,
        fleet: FleetSpec,
        model: npt.NDArray[np.int16],
        position: IntArray,
        key: UintArray,
        u_rows: FloatArray,
        extras: Extras | None,
    ) -> Prompts:
        recorded = None if self.recorded is None else self.recorded.prompts_at(position)
        if recorded is not None:
            return recorded
        texts = []
        for spec, traffic in zip(fleet.models, self._by_model(fleet), strict=True):
            if spec.generation is not None and traffic.share and traffic.prompts is None:
                raise ValueError(f"requests to {spec.name} have no prompts, and it generates: give them")
            texts.append(traffic.prompts if spec.generation is not None else None)
        responses = np.zeros(len(model), np.int32) if extras is None else extras.responses
        return drawn(texts, model, key, u_rows, np.maximum(responses, 1))

    def _extras(
        self,
        fleet: FleetSpec,
        model: npt.NDArray[np.int16],
        key: UintArray,
        u_rows: FloatArray,
        generators: list[np.random.Generator],
    ) -> tuple[Extras, UintArray]:
        """What few requests have, and all keys, those of sequences included."""
        count = len(model)
        in_sequences, lengths, patience = (
            generator.random((count, 3) if i == 0 else count) for i, generator in enumerate(generators)
        )
        found = Extras.none(count)
        member, number = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        for i, traffic in enumerate(self._by_model(fleet)):
            own = model == i
            if traffic.sequences is not None:
                member[own], number[own] = traffic.sequences.draw(in_sequences[own])
            if traffic.patience is not None:
                found.patience_s[own] = traffic.patience.quantile(patience[own])
        sequence, starts, keys = numbered(member, model, number, [one.name for one in fleet.models])
        key = np.where(member, keys, key)
        for i, traffic in enumerate(self._by_model(fleet)):
            own, stream = model == i, traffic.stream
            if stream is not None:
                shown = {"rows": u_rows[own], "key": place_of_key(key[own])}
                found.responses[own] = stream.count(lengths[own], shown.get(stream.follows or ""))
                found.first_share[own] = stream.first / stream.work(found.responses[own])
        return replace(found, sequence=sequence, starts=starts), key

    def _stream_work(self, fleet: FleetSpec, model: npt.NDArray[np.int16], extras: Extras) -> FloatArray:
        """Work that streams have by their responses, over its mean; 1 for all others."""
        work = np.ones(len(model))
        for i, traffic in enumerate(self._by_model(fleet)):
            if traffic.stream is not None:
                own = model == i
                work[own] = traffic.stream.work(extras.responses[own]) / traffic.stream.mean_work
        return work

    def demand(self, fleet: FleetSpec) -> tuple[Demand, ...]:
        """What is asked of each of the fleet's models, exactly or, for drawn rows, to about 1 in 10,000.

        Raises:
            ValueError: a model is not the fleet's.
        """
        traffic = self._by_model(fleet)
        shares = np.array([one.share for one in traffic])
        named = self.recorded.models if self.recorded is not None else None
        if named is not None:
            shares = np.bincount(_indices(named, fleet), minlength=len(traffic))
        shares = shares / shares.sum()
        return tuple(self._demand(fleet, i, float(shares[i])) for i in range(len(traffic)))

    def _demand(self, fleet: FleetSpec, index: int, share: float) -> Demand:
        model, traffic, trace = fleet.models[index], self._by_model(fleet)[index], self.recorded
        rows: FloatArray = np.array(mean_rows(traffic.rows, model.batching.max_batch_rows))
        work: FloatArray = np.ones(1)
        if trace is not None and share:
            own = slice(None) if trace.models is None else np.array(trace.models) == model.name
            if trace.rows is not None:
                rows = whole_rows(trace.rows[own], model.batching.max_batch_rows).astype(np.float64)
            if trace.work is not None:
                work = trace.work[own]
        stream = traffic.stream
        if model.generation is not None:
            return Demand(share, 1.0, 1.0, self._prompt_demand(fleet, index) if share else None)
        if stream is not None and stream.follows == "rows":
            most_rows = model.batching.max_batch_rows
            return Demand(share, float(rows.mean()), stream.mean_row_work(traffic.rows, most_rows) * float(work.mean()))
        return Demand(share, float(rows.mean()), float((rows * work).mean()))

    def _prompt_demand(self, fleet: FleetSpec, index: int) -> PromptDemand:
        """Of the whole trace, or of many requests that are drawn."""
        requests = _SAMPLE if self.recorded is None else len(self.recorded.time_s)
        sample = self.arrivals(fleet, requests, 0)
        assert sample.prompts is not None  # a model generates
        own = sample.model == index
        tokens, output = (each[own].astype(np.float64) for each in (sample.prompts.tokens, sample.prompts.output))
        means = (tokens, output, np.square(tokens) / 2, output * (tokens + output / 2))
        return PromptDemand(*(float(each.mean()) if len(each) else 1.0 for each in means))

    def _by_model(self, fleet: FleetSpec) -> list[ModelTraffic]:
        """One for each of the fleet's models, in its order; `share` 0 where it gets no requests."""
        named = {one.name: one for one in self.traffic}
        _indices(tuple(named), fleet)
        return [named.get(model.name, ModelTraffic(model.name, share=0.0)) for model in fleet.models]

    def _balancers(self, fleet: FleetSpec, u: FloatArray) -> npt.NDArray[np.int16]:
        if not self.balancers:
            return np.floor(u * fleet.balancers).astype(np.int16)
        if len(self.balancers) != fleet.balancers:
            raise ValueError(
                f"balancers is {self.balancers}: give a weight for each of the fleet's {fleet.balancers} balancers"
            )
        return Shares(dict(enumerate(self.balancers))).quantile(u).astype(np.int16)

    def _models(self, fleet: FleetSpec, position: IntArray, u: FloatArray) -> npt.NDArray[np.int16]:
        if self.recorded is not None and self.recorded.models is not None:
            return _indices(self.recorded.models, fleet)[position].astype(np.int16)
        shares = Shares({i: one.share for i, one in enumerate(self._by_model(fleet))})
        return shares.quantile(u).astype(np.int16)

    def _sizes(
        self, fleet: FleetSpec, model: npt.NDArray[np.int16], position: IntArray, u_rows: FloatArray, u_work: FloatArray
    ) -> tuple[npt.NDArray[np.int32], FloatArray]:
        rows, work = np.empty(len(model), dtype=np.int32), np.empty(len(model))
        for i, traffic in enumerate(self._by_model(fleet)):
            own = model == i
            sizes = self._recorded_or("rows", position[own], traffic.rows.quantile(u_rows[own]))
            rows[own] = whole_rows(sizes, fleet.models[i].batching.max_batch_rows)
            work[own] = self._recorded_or("work", position[own], traffic.work.quantile(u_work[own]) / traffic.work.mean)
        return rows, work

    def _deadlines_s(self, fleet: FleetSpec, model: npt.NDArray[np.int16], u: FloatArray) -> FloatArray:
        deadline_s = np.empty(len(model))
        for i, traffic in enumerate(self._by_model(fleet)):
            due, own = traffic.deadline_s, model == i
            deadline_s[own] = due.quantile(u[own]) if isinstance(due, Shares) else due
        return deadline_s

    def _recorded_or(self, column: str, position: IntArray, drawn: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The trace's values of that column, one a request; what was drawn where it has none."""
        recorded = None if self.recorded is None else getattr(self.recorded, column)
        return drawn if recorded is None else recorded[position]


def _indices(names: tuple[str, ...], fleet: FleetSpec) -> IntArray:
    """Positions of models in the fleet; raises `ValueError` for one that is not there."""
    known = {model.name: i for i, model in enumerate(fleet.models)}
    if strange := set(names) - set(known):
        raise ValueError(f"requests go to model {min(strange)!r}: name one of the fleet's, {sorted(known)}")
    return np.array([known[name] for name in names], dtype=np.int64)
