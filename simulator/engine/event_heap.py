"""A binary heap of events for each environment, by time and then by payload (kind and subject)."""

import numpy as np

from simulator.engine import layout as at
from simulator.engine.compiled import inlined, outlined
from simulator.engine.layout import Heap


@inlined
def _lasts(kind: int) -> bool:
    """Whether something may come of it; ticks, reports and the like come for ever."""
    return at.TICK < kind < at.SAMPLE or kind == at.ANSWER


@outlined
def push(heap: Heap, e: int, at_s: float, kind: int, subject: int) -> None:
    payload = (np.int64(kind) << at.KIND_BITS) | np.int64(subject)
    heap.lasting[e] += _lasts(kind)
    place = heap.size[e]
    heap.size[e] = place + 1
    while place > 0:
        parent = (place - 1) >> 1
        if heap.at_s[e, parent] < at_s or (heap.at_s[e, parent] == at_s and heap.payload[e, parent] <= payload):
            break
        heap.at_s[e, place] = heap.at_s[e, parent]
        heap.payload[e, place] = heap.payload[e, parent]
        place = parent
    heap.at_s[e, place] = at_s
    heap.payload[e, place] = payload


@outlined
def pop(heap: Heap, e: int) -> int:
    """Remove the first event and return its payload; there must be one."""
    first = heap.payload[e, 0]
    heap.lasting[e] -= _lasts(first >> at.KIND_BITS)
    size = heap.size[e] - 1
    heap.size[e] = size
    at_s, payload = heap.at_s[e, size], heap.payload[e, size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap.at_s[e, other] < heap.at_s[e, child]
            or (heap.at_s[e, other] == heap.at_s[e, child] and heap.payload[e, other] < heap.payload[e, child])
        ):
            child = other
        if at_s < heap.at_s[e, child] or (at_s == heap.at_s[e, child] and payload <= heap.payload[e, child]):
            break
        heap.at_s[e, place] = heap.at_s[e, child]
        heap.payload[e, place] = heap.payload[e, child]
        place = child
    heap.at_s[e, place] = at_s
    heap.payload[e, place] = payload
    return first
