"""The production router inside a simulated fleet small enough to read: batching workers, stale reports, no clock.

Not the project's simulator: just enough of Triton to tell whether router and estimators work together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from balancer.core.events import Finished, ModelReport, Report, WorkerAdded
from balancer.core.router import Router
from policies.base import Policy, Request

MAX_BATCH = 8
FIXED_S, PER_ROW_S = 0.010, 0.002


class Worker:
    """A server with one queue and one device; `speed` divides its service time."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.queue: list[tuple[int, int, float]] = []
        self.executing: list[tuple[int, int, float]] = []
        self.counts: dict[int, tuple[int, float]] = {}

    def service_s(self, rows: int) -> float:
        return (FIXED_S + PER_ROW_S * rows) / self.speed


def simulate(
    policy: Policy, speeds: Sequence[float], rate_per_s: float, requests: int = 6000, balancers: int = 1, seed: int = 0
) -> np.ndarray:
    """Latency of each request in seconds: Poisson arrivals, reports every 50 ms, outcomes known 5 ms after the end."""
    arrivals_s = np.random.default_rng(seed).exponential(1 / rate_per_s, requests).cumsum()
    workers = [Worker(speed) for speed in speeds]
    routers = [Router(policy, seed=seed + k) for k in range(balancers)]
    latencies_s = np.full(requests, np.nan)
    events: list[tuple[float, int, str, object]] = []
    order = iter(range(1 << 40))

    def at(time_s: float, kind: str, what: object = None) -> None:
        heapq.heappush(events, (time_s, next(order), kind, what))

    def start(w: int, now_s: float) -> None:
        worker = workers[w]
        if worker.queue and not worker.executing:
            worker.executing, worker.queue = worker.queue[:MAX_BATCH], worker.queue[MAX_BATCH:]
            at(now_s + worker.service_s(len(worker.executing)), "batch", w)

    def report(number: int, now_s: float) -> None:
        for w, worker in enumerate(workers):
            batches = tuple((rows, count, seconds) for rows, (count, seconds) in worker.counts.items())
            there = ModelReport(
                "m", "1", True, len(worker.queue), len(worker.executing), max_batch_rows=MAX_BATCH, batches=batches
            )
            for router in routers:
                router.observe(Report(f"w{w}", 1, number, True, (there,), balancers), now_s)

    for router in routers:
        for w in range(len(workers)):
            router.observe(WorkerAdded(f"w{w}"), 0.0)
    report(0, 0.0)
    for k, arrival_s in enumerate(arrivals_s):
        at(float(arrival_s), "arrival", k)
    for number in range(1, int(arrivals_s[-1] / 0.05)):
        at(number * 0.05, "report", number)
    while events:
        now_s, _, kind, what = heapq.heappop(events)
        if kind == "arrival":
            assert isinstance(what, int)
            decision = routers[what % balancers].route(Request("m"), now_s)
            w = int(decision.worker[1:])
            workers[w].queue.append((what, decision.number, now_s))
            start(w, now_s)
        elif kind == "batch":
            assert isinstance(what, int)
            worker = workers[what]
            rows = len(worker.executing)
            count, seconds = worker.counts.get(rows, (0, 0.0))
            worker.counts[rows] = (count + 1, seconds + worker.service_s(rows))
            for k, number, sent_s in worker.executing:
                latencies_s[k] = now_s - sent_s
                outcome = Finished(number, f"w{what}", now_s - sent_s, True)
                at(now_s + 0.005, "outcome", (k % balancers, outcome))
            worker.executing = []
            start(what, now_s)
        elif kind == "outcome":
            assert isinstance(what, tuple)
            routers[what[0]].observe(what[1], now_s)
        else:
            assert isinstance(what, int)
            report(what, now_s)
            for router in routers:
                router.tick(now_s)
    assert not any(router.fleet.queue.in_flight.any() for router in routers)
    return latencies_s
