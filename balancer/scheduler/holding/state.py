"""What is known of the requests that are held, as arrays: one layout for production and simulator.

A request has a *place* from the moment it is held until it leaves. A balancer's *wait queue* is the places in
order. Rows: a fleet `e`, its balancers `b`; production has one of each.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from balancer.kernel.estimators.columns import array, declared
from balancer.kernel.estimators.queue import peer_share_left
from balancer.kernel.settings import HoldingSettings, Order
from balancer.kernel.state import FleetState
from policies.base import FloatArray

AnyArray = npt.NDArray[Any]

ORDERS: tuple[str, ...] = get_args(Order)
ARRIVAL, DEADLINE, PRIORITY, FAIR, SHORTEST = range(5)

# Columns of `Held.settings`.
ORDER, DETOUR, DEFAULT_DEADLINE_S, LONGEST_WAIT_S, MOST_REQUESTS, MOST_S, PLACES_BEYOND, HOLD_COLUMNS = range(8)

# Columns of `Held.models`.
WINDOW, FORMING, HELD_MODEL_COLUMNS = range(3)
NEVER_HELD = -1.0
"""In place of a window."""

MOST_LOOKS = 256
"""Requests that are looked at in one dispatch."""
MOST_UNDO = 1024
MOST_TENANTS = 1024
"""Whose turns the order `fair` keeps apart."""

# Columns of `Held.undo`: the worker's row and the model, then what stood there; see `dispatch.count_for_now`.
UNDO_COLUMNS = 19

# Where a request goes that no worker gets, in `Held.goes_to`.
SHEDS, NOBODY = -1, -2
WAITS = -3
"""In place of a worker: the policy would rather wait."""


class Held(NamedTuple):
    settings: FloatArray = array("e hold")
    """`(e, HOLD_COLUMNS)`."""
    models: FloatArray = array("e m held_model")
    """`(e, m, HELD_MODEL_COLUMNS)`."""
    weight: FloatArray = array("e tenants", start=1)
    """Of tenants, `(e, tenants)`."""
    wait_queue: AnyArray = array("e b held", np.int32)
    """Places in order, `(e, b, held)`, as many as `length` says."""
    length: AnyArray = array("e b", int)
    entered: AnyArray = array("e b", int)
    models_held: AnyArray = array("e b", int)
    of_model: AnyArray = array("e b m", int)
    """Requests held by model, `(e, b, m)`."""
    dispatches: AnyArray = array("e b", int)
    shut: AnyArray = array("e b m", int)
    """The last dispatch in which no worker had capacity for the model, `(e, b, m)`."""
    virtual_s: FloatArray = array("e b")
    """Virtual time of the order `fair`: the start of the service of who left last."""
    finish_s: FloatArray = array("e b tenants")
    """Virtual time at which a tenant's requests up to now would be done, `(e, b, tenants)`."""
    is_held: AnyArray = array("e held", np.bool_, False)
    """By place, `(e, held)`, as all of a request."""
    rank: FloatArray = array("e held")
    """Less goes first."""
    entry: AnyArray = array("e held", int)
    """How many were held before it: who is equal in rank goes in this order."""
    late: AnyArray = array("e held", np.bool_, False)
    """Whether its deadline cannot be met any more: then it comes after all others."""
    since_s: FloatArray = array("e held")
    deadline_s: FloatArray = array("e held")
    """From `since_s`; infinite: none."""
    model: AnyArray = array("e held", np.int32)
    rows: FloatArray = array("e held")
    priority: FloatArray = array("e held")
    tenant: AnyArray = array("e held", np.int32)
    key: AnyArray = array("e held", np.uint64)
    keyed: AnyArray = array("e held", np.bool_, False)
    leaves: AnyArray = array("e held", np.int32)
    """Places that leave in this dispatch, in order."""
    goes_to: AnyArray = array("e held", np.int32)
    """Worker of each of those, or `SHEDS` or `NOBODY`."""
    undo: FloatArray = array("e undos undo")
    """What stood in the fleet's state before the picks and plans of this dispatch, `(e, undos, UNDO_COLUMNS)`."""


def lengths_of_held(places: int, holds: bool) -> dict[str, int]:
    """How long axes are that are of no other record; shortest where nothing is held."""
    return {
        "hold": HOLD_COLUMNS,
        "held_model": HELD_MODEL_COLUMNS,
        "undo": UNDO_COLUMNS,
        "held": places if holds else 1,
        "undos": MOST_UNDO if holds else 1,
        "tenants": MOST_TENANTS if holds else 1,
    }


def holding_row(settings: HoldingSettings) -> list[float]:
    values = {
        ORDER: ORDERS.index(settings.order),
        DETOUR: settings.detour,
        DEFAULT_DEADLINE_S: settings.default_deadline_s,
        LONGEST_WAIT_S: settings.longest_wait_s,
        MOST_REQUESTS: settings.max_requests,
        MOST_S: settings.max_s,
        PLACES_BEYOND: settings.overflow == "place",
    }
    return [float(values[column]) for column in range(HOLD_COLUMNS)]


def model_rows(settings: HoldingSettings, models: Sequence[str]) -> list[list[float]]:
    found = [settings.models.get(model) for model in models]
    return [[NEVER_HELD, 0.0] if one is None else [one.window_batches, float(one.forming)] for one in found]


def held_arrays(lengths: dict[str, int]) -> Held:
    fields = declared(Held)
    return Held(
        **{
            name: np.full([lengths[axis] for axis in axes.split()], start, kind)
            for name, (axes, kind, start) in fields.items()
        }
    )


_NOTHING = 1e-9
"""Batches that rounding may leave."""


def batches_of(x: FleetState, r: int, model: int) -> float:
    """Batches of ours that a worker has of a model: those that execute, no fewer than instances are busy, and those
    that wait."""
    rows, waiting = x.queue.known_rows[r, model], x.queue.waiting_rows[r, model]
    if rows == 0:
        return 0.0
    most, executing = x.service.max_batch_rows[r, model], rows - waiting
    busy = min(executing, x.service.instances[r, model])
    return float(max(math.ceil(executing / most), busy) + math.ceil(waiting / most))


def batches_there(x: FleetState, r: int, model: int, now_s: float) -> float:
    """Unfinished batches at a worker, over all models; others' requests as if they were to this one."""
    batches = 0.0
    for m in range(x.queue.known_rows.shape[1]):
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
