"""One way to hold, measured: a number for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from policies import BUILTIN
from policies.base import FloatArray
from simulator.result import Result, Status
from simulator.run import run
from simulator.scenario import Scenario
from simulator.scoreboard.metrics import WARM_UP_SHARE
from simulator.spec import FleetSpec

POLICY = "expected_latency"


@dataclass(frozen=True)
class Measured:
    """`(seeds,)` each."""

    mean_s: FloatArray
    p99_s: FloatArray
    ok: FloatArray
    """Share of all requests that were answered."""
    in_time: FloatArray
    """Share of all requests that were answered within their deadline."""
    classes: dict[float, tuple[FloatArray, FloatArray]]
    """By deadline: the share in time, and the 99th percentile of the latency, in seconds."""
    tenants: FloatArray
    """Share of the answers that went to each tenant while requests came, `(tenants, seeds)`."""


def measure(
    scenario: Scenario,
    fleet: FleetSpec,
    seeds: Sequence[int],
    requests: int,
    options: Mapping[str, float] = MappingProxyType({}),
) -> Measured:
    """The scenario's requests on this fleet, which may have fewer balancers; `options`: of the policy."""
    arrivals = [scenario.arrivals(seed, requests) for seed in seeds]
    if fleet.balancers < scenario.fleet.balancers:
        for one in arrivals:
            one.balancer[:] = 0
    return _measured(run(fleet, arrivals, BUILTIN[POLICY](**options), seeds=seeds), int(WARM_UP_SHARE * requests))


def _measured(result: Result, first: int) -> Measured:
    latency_s, deadline_s = result.latency_s[:, first:], result.deadline_s[:, first:]
    ok = result.status[:, first:] == Status.OK
    # Of tenants, what was answered while requests came, whenever they had come themselves.
    answer_s, last_s = result.arrival_s + result.latency_s, result.arrival_s[:, -1:]
    tenant, warm_s = result.tenant, WARM_UP_SHARE * last_s
    given = (result.status == Status.OK) & (answer_s > warm_s) & (answer_s <= last_s)
    in_time = ok & (latency_s <= deadline_s)
    classes = {}
    for due_s in np.unique(deadline_s[np.isfinite(deadline_s)]).tolist():
        own = deadline_s == due_s
        classes[due_s] = (in_time.sum(axis=1, where=own) / own.sum(axis=1), _p99(latency_s, ok & own))
    return Measured(
        mean_s=np.array([line[answered].mean() for line, answered in zip(latency_s, ok, strict=True)]),
        p99_s=_p99(latency_s, ok),
        ok=ok.mean(axis=1),
        in_time=in_time.mean(axis=1),
        classes=classes if len(classes) > 1 else {},
        tenants=np.array([(given & (tenant == i)).sum(axis=1) / given.sum(axis=1) for i in range(tenant.max() + 1)]),
    )


def _p99(latency_s: FloatArray, counted: FloatArray) -> FloatArray:
    return np.array([np.quantile(line[own], 0.99) for line, own in zip(latency_s, counted, strict=True)])
