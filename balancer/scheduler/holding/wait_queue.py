"""The wait queue: who goes first, who comes in, who leaves. Over one balancer's arrays."""

import math

from balancer.scheduler.holding.state import (
    DEADLINE,
    DEFAULT_DEADLINE_S,
    FAIR,
    LONGEST_WAIT_S,
    MOST_REQUESTS,
    ORDER,
    PRIORITY,
    SHORTEST,
    WINDOW,
    Held,
)


def is_held_model(held: Held, e: int, model: int) -> bool:
    return bool(held.models[e, model, WINDOW] >= 0)


def is_crowded(held: Held, e: int, b: int) -> bool:
    return bool(held.length[e, b] > held.settings[e, MOST_REQUESTS])


def goes_before(held: Held, e: int, one: int, other: int) -> bool:
    if held.late[e, one] != held.late[e, other]:
        return bool(held.late[e, other])
    if held.rank[e, one] != held.rank[e, other]:
        return bool(held.rank[e, one] < held.rank[e, other])
    return bool(held.entry[e, one] < held.entry[e, other])


def insert(held: Held, e: int, b: int, place: int) -> None:
    queue = held.wait_queue[e, b]
    at = held.length[e, b]
    while at > 0 and goes_before(held, e, place, queue[at - 1]):
        queue[at] = queue[at - 1]
        at -= 1
    queue[at] = place
    held.length[e, b] += 1


def take_out(held: Held, e: int, b: int, at: int) -> int:
    """Take who stands at a position out of the queue; returns the place."""
    queue = held.wait_queue[e, b]
    place = queue[at]
    for i in range(at, held.length[e, b] - 1):
        queue[i] = queue[i + 1]
    held.length[e, b] -= 1
    return int(place)


def position_of(held: Held, e: int, b: int, place: int) -> int:
    """Where a place stands in the queue; -1: nowhere."""
    for at in range(held.length[e, b]):
        if held.wait_queue[e, b, at] == place:
            return at
    return -1


def enter(held: Held, e: int, b: int, place: int, service_s: float, now_s: float) -> None:
    """A request comes in, what is known of it at its place; `service_s`: expected of it on the fastest worker."""
    model = held.model[e, place]
    held.is_held[e, place] = True
    held.late[e, place] = False
    held.since_s[e, place] = now_s
    held.entry[e, place] = held.entered[e, b]
    held.entered[e, b] += 1
    held.rank[e, place] = _rank(held, e, b, place, service_s)
    held.models_held[e, b] += held.of_model[e, b, model] == 0
    held.of_model[e, b, model] += 1
    insert(held, e, b, place)


def _rank(held: Held, e: int, b: int, place: int, service_s: float) -> float:
    order = held.settings[e, ORDER]
    if order == DEADLINE:
        left_s = held.deadline_s[e, place]
        return float(held.since_s[e, place] + min(left_s, _instead(held, e, left_s)))
    if order == PRIORITY:
        # Without a number it is as important as any, as it is to limits.
        return float(max(held.priority[e, place], 1.0))
    if order == SHORTEST:
        return float(service_s)
    return _start(held, e, b, place, service_s) if order == FAIR else 0.0


def _instead(held: Held, e: int, left_s: float) -> float:
    return float(held.settings[e, DEFAULT_DEADLINE_S]) if left_s == math.inf else left_s


def _start(held: Held, e: int, b: int, place: int, service_s: float) -> float:
    """Start-time fair queueing: a tenant's requests follow each other in its own virtual time, which runs the faster
    the more it weighs, and whoever was away begins at the present."""
    tenant = held.tenant[e, place]
    start_s = max(held.virtual_s[e, b], held.finish_s[e, b, tenant])
    held.finish_s[e, b, tenant] = start_s + service_s / held.weight[e, tenant]
    return float(start_s)


def leave(held: Held, e: int, b: int, at: int) -> int:
    """Who stands at a position leaves for good; returns the place."""
    place = _remove(held, e, b, at)
    if held.settings[e, ORDER] == FAIR:
        held.virtual_s[e, b] = max(held.virtual_s[e, b], held.rank[e, place])
    return place


def _remove(held: Held, e: int, b: int, at: int) -> int:
    place = take_out(held, e, b, at)
    model = held.model[e, place]
    held.is_held[e, place] = False
    held.of_model[e, b, model] -= 1
    held.models_held[e, b] -= held.of_model[e, b, model] == 0
    return place


def rank_anew(held: Held, e: int, b: int, place: int, service_s: float) -> None:
    """Give a place the rank that it has by the order in force, which was another; `sort` must follow. By order `fair`
    tenants' requests follow each other as they are given."""
    held.late[e, place] = False
    held.rank[e, place] = _rank(held, e, b, place, service_s)


def sort(held: Held, e: int, b: int) -> None:
    count = held.length[e, b]
    held.length[e, b] = 0
    for at in range(count):
        insert(held, e, b, held.wait_queue[e, b, at])


def crowd_out(held: Held, e: int, b: int) -> int:
    """Who stands last leaves without a worker; returns the place. By order `fair`, its tenant does not pay for it."""
    place = _remove(held, e, b, held.length[e, b] - 1)
    if held.settings[e, ORDER] == FAIR:
        # The last of all is its tenant's last as well.
        held.finish_s[e, b, held.tenant[e, place]] = held.rank[e, place]
    return place


def put_last(held: Held, e: int, b: int, at: int) -> None:
    """Who stands at a position will be late whatever happens: from now on after all who will not."""
    place = take_out(held, e, b, at)
    held.late[e, place] = True
    insert(held, e, b, place)


def put_first_who_waited_long(held: Held, e: int, b: int, now_s: float) -> None:
    """By the orders in which others may overtake for ever: who has waited for the longest time allowed goes first."""
    order = held.settings[e, ORDER]
    if order != PRIORITY and order != SHORTEST:  # noqa: PLR1714 - `in` is no operation on these in compiled code
        return
    for at in range(held.length[e, b]):
        place = held.wait_queue[e, b, at]
        waited_s = now_s - held.since_s[e, place]
        if waited_s >= held.settings[e, LONGEST_WAIT_S] and held.rank[e, place] > -math.inf:
            take_out(held, e, b, at)
            held.rank[e, place] = -math.inf
            insert(held, e, b, place)
