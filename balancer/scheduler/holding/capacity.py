"""Whether a worker has capacity for a request that is held. Rows: a worker as its balancer knows it, `r`."""

import math

from balancer.kernel.estimators.queue import peer_share_left
from balancer.kernel.state import FleetState
from balancer.scheduler.holding.state import WINDOW, Held

_NOTHING = 1e-9
"""Batches that rounding may leave."""


def batches_of(x: FleetState, r: int, model: int) -> float:
    """Batches of ours that a worker has of a model: those that execute, no fewer than instances are busy, and those
    that wait."""
    rows, waiting = x.queue.own_rows[r, model], x.queue.waiting_rows[r, model]
    if rows == 0:
        return 0.0
    most, executing = x.service.max_batch_rows[r, model], rows - waiting
    busy = min(executing, x.service.instances[r, model])
    return float(max(math.ceil(executing / most), busy) + math.ceil(waiting / most))


def batches_there(x: FleetState, r: int, model: int, now_s: float) -> float:
    """Unfinished batches at a worker, over all models; others' requests as if they were to this one."""
    batches = 0.0
    for m in range(x.queue.own_rows.shape[1]):
        batches += batches_of(x, r, m)
    if x.queue.peer_in_flight[r] > 0:
        batches += (
            x.queue.peer_in_flight[r] * float(peer_share_left(x.queue, r, now_s)) / x.service.max_batch_rows[r, model]
        )
    return batches


def has_capacity(x: FleetState, held: Held, e: int, r: int, model: int, rows: float, now_s: float) -> bool:
    """Whether so many rows of a model stay within its window, or the worker has nothing to do.

    Rows that can join a batch that waits count as their part of it.
    """
    batches = batches_there(x, r, model, now_s)
    if batches < _NOTHING:
        return True
    most, waiting = x.service.max_batch_rows[r, model], x.queue.waiting_rows[r, model]
    after = batches - math.ceil(waiting / most) + (waiting + rows) / most
    return bool(after <= x.service.instances[r, model] + held.models[e, model, WINDOW] + _NOTHING)


def keep_those_with_capacity(
    x: FleetState, held: Held, e: int, first: int, model: int, rows: float, now_s: float
) -> int:
    """Leave those in `decision.mask` with capacity; returns how many they are."""
    mask, count = x.decision.mask[e], 0
    for w in range(len(mask)):
        mask[w] = mask[w] and has_capacity(x, held, e, first + w, model, rows, now_s)
        count += mask[w]
    return count
