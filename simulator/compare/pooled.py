"""What no policy can beat: all devices pooled into one that never waits for a full batch and may interrupt anything.

Needs. A batch of B rows takes `device_s(B)` times the mean work of its rows, so its device seconds divide among its
requests by rows times work, and a request needs at least rows * work * min over B of `device_s(B) / B`. Devices differ,
so seconds are made comparable by prices: a second of worker w is worth y_w, a row of model m is counted as
l_m = min over w of y_w d_wm, and sum y_w k_w = 1 with k_w what sharing the device gains. Whoever executes what where:
needs are then worked off at a rate of at most 1. Any such prices give a bound; those of the linear program below make
the pooled device saturate exactly where the best split over workers does.

Mean. Let M_j be the mean time at which request j's device work is done. A request cannot be done faster than alone on
its best worker (`device_s` seconds), so it ends at least half of that after M_j; and no schedule has a lower sum of
M_j than the pooled device that always works on the request of least need (Goemans 1996, A supermodular relaxation for
scheduling with release dates; for several machines Eastman, Even, Isaacs 1964). With service noise of variation c the
half becomes (1 - c^2) / 2, and the bound is one in expectation (Moehring, Schulz, Uetz 1999, Approximation in
stochastic scheduling). Nor can the mean be below that of every request alone on an idle fleet. Requests of the warm-up
count in neither, as if they had not been there, which only lowers the bound.

p99. No order is best for the tail when requests differ, so here the pooled device serves first come, first served: a
yardstick, not a bound. Not below each request alone either.

The bound holds where every request is answered. Faults, cold starts, batch delays, retries and jitter only add to it,
if faults slow down rather than speed up.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from scipy.optimize import linprog

from policies.base import FloatArray
from simulator.arrivals import Arrivals
from simulator.capacity import sharing_gain
from simulator.compare.metrics import WARM_UP_SHARE
from simulator.spec import FleetSpec, ModelSpec, SimulatedWorker


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """By environment, `(e,)`; NaN for a closed loop, whose arrivals depend on the policy."""

    mean_s: FloatArray
    """Lower bound of the mean latency."""
    p99_s: FloatArray
    """What a first come, first served pooled device has."""


def pooled(fleet: FleetSpec, arrivals: Sequence[Arrivals], warm_up_share: float = WARM_UP_SHARE) -> Pooled:
    """The references of each environment's arrivals, of which the first `warm_up_share` is not counted."""
    demand = sum(
        np.bincount(each.model, each.rows * each.work, minlength=len(fleet.models)) for each in arrivals
    ) + np.zeros(len(fleet.models))
    row_need_s = _row_needs(fleet, demand)
    found = np.array([_environment(fleet, each, row_need_s, warm_up_share) for each in arrivals])
    return Pooled(found[:, 0], found[:, 1])


def _environment(
    fleet: FleetSpec, arrivals: Arrivals, row_need_s: FloatArray, warm_up_share: float
) -> tuple[float, float]:
    if arrivals.clients:
        return np.nan, np.nan
    saving = fleet.cache.saving if fleet.cache.entries else 0.0
    work = arrivals.rows * arrivals.work * (1.0 - saving)
    need_s = row_need_s[arrivals.model] * work
    host_s, device_s = _alone(fleet, arrivals, work)
    network_s = fleet.network.to_worker_s + fleet.network.to_client_s
    counted = slice(int(len(arrivals) * warm_up_share), None)
    alone_s = (host_s + device_s)[counted]
    ready_s = arrivals.time_s + host_s

    variation = np.array([{"none": 0.0, "exponential": 1.0}.get(m.noise.kind, m.noise.cv) for m in fleet.models])
    mean_s = float(alone_s.mean())
    if variation.max() <= 1.0:  # beyond, the half would be negative and no longer bounded
        after_s = (1.0 - np.square(variation[arrivals.model])) / 2 * device_s
        order = np.argsort(ready_s[counted], kind="stable")
        waited_s = _midpoints(ready_s[counted][order], need_s[counted][order]) - arrivals.time_s[counted].sum()
        mean_s = max(mean_s, (waited_s + float(after_s[counted].sum())) / len(alone_s))

    done_s = np.cumsum(need_s)
    queued_s = np.maximum.accumulate(arrivals.time_s - (done_s - need_s)) + done_s - arrivals.time_s
    p99_s = np.quantile(np.maximum(queued_s[counted], alone_s), 0.99)
    return network_s + mean_s, network_s + float(p99_s)


def _row_needs(fleet: FleetSpec, demand: FloatArray) -> FloatArray:
    """Seconds of the pooled device that a row of each model needs, `(m,)`; `demand` in rows times work, `(m,)`.

    The prices l_m of the module's page: the most that the demand can need, over all prices y_w of the workers.
    """
    workers, models = fleet.workers, fleet.models
    pairs = [(w, m) for w in range(len(workers)) for m in range(len(models)) if workers[w].holds(models[m].name)]
    tables = [_tables(models[m], workers[w])[0] for w, m in pairs]
    row_s = np.array([(device_s[1:] / np.arange(1, len(device_s))).min() for device_s in tables])  # in the best batch
    unit_s = np.ones(len(models))  # near 1 each, for the solver's tolerances
    for (_, m), seconds in zip(pairs, row_s, strict=True):
        unit_s[m] = seconds
    limit = np.zeros((len(pairs), len(workers) + len(models)))
    for row, (w, m) in enumerate(pairs):
        limit[row, w], limit[row, len(workers) + m] = -row_s[row] / unit_s[m], 1.0
    weight = demand * unit_s
    gains = [sharing_gain(worker, fleet) for worker in workers]
    solved = linprog(
        -np.concatenate([np.zeros(len(workers)), weight / weight.sum()]),
        A_ub=limit,
        b_ub=np.zeros(len(pairs)),
        A_eq=np.concatenate([gains, np.zeros(len(models))])[None],
        b_eq=[1.0],
    )
    # 0 for a model that has workers to spare.
    needs: FloatArray = np.maximum(solved.x[len(workers) :], 0.0) * unit_s
    return needs


def _alone(fleet: FleetSpec, arrivals: Arrivals, work: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Least seconds of each request on an instance before the device, and on the device; `(k,)` each.

    Others in its batch may have less work, which makes the batch's rows cheaper than its own.
    """
    host_s, device_s = np.zeros(len(work)), np.full(len(work), np.inf)
    for m, model in enumerate(fleet.models):
        chosen = np.flatnonzero(arrivals.model == m)
        if not len(chosen):
            continue
        rows, own = arrivals.rows[chosen], work[chosen]
        least_work = float((own / rows).min())
        hosts, shortest = [], np.full(len(chosen), np.inf)
        kinds = {(worker.device, worker.speed): worker for worker in fleet.workers if worker.holds(model.name)}
        for worker in kinds.values():
            on_device, on_host = _tables(model, worker)
            hosts.append(np.minimum.accumulate(on_host[::-1])[::-1])  # a batch has at least the request's rows
            for batch in range(1, len(on_device)):
                mean_work = (own + (batch - rows) * least_work) / batch
                shortest = np.where(batch < rows, shortest, np.minimum(shortest, on_device[batch] * mean_work))
        host_s[chosen], device_s[chosen] = np.min(hosts, axis=0)[rows], shortest
    return host_s, device_s


@numba.njit(cache=True)
def _midpoints(ready_s: FloatArray, need_s: FloatArray) -> float:
    """Sum over requests of the mean time at which each is worked on; least need first, one at a time, at rate 1."""
    waiting = [(0.0, 0) for _ in range(0)]
    left_s = need_s.copy()
    now_s, total_s, following = 0.0, 0.0, 0
    while waiting or following < len(ready_s):
        if not waiting:
            now_s = max(now_s, ready_s[following])
        while following < len(ready_s) and ready_s[following] <= now_s:
            if need_s[following] > 0.0:
                heapq.heappush(waiting, (need_s[following], following))
            else:
                total_s += ready_s[following]
            following += 1
        if not waiting:
            continue
        first = waiting[0][1]
        until_s = now_s + left_s[first]
        if following < len(ready_s) and ready_s[following] < until_s:
            until_s = ready_s[following]
            left_s[first] -= until_s - now_s
        else:
            heapq.heappop(waiting)
        total_s += (until_s - now_s) / need_s[first] * (until_s + now_s) / 2
        now_s = until_s
    return total_s


def _tables(model: ModelSpec, worker: SimulatedWorker) -> tuple[FloatArray, FloatArray]:
    """Seconds on the device and on the host by rows, the worker's speed in them."""
    service = model.service_on(worker.device)
    assert service is not None  # as for whoever asks for the fleet's capacity
    device_s, host_s = service.table(model.batching.max_batch_rows)
    return device_s / worker.speed, host_s
