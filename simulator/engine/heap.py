"""A binary heap of events for each environment, by time and then by payload (kind and subject)."""

from __future__ import annotations

from simulator.engine.compiled import outlined
from simulator.engine.layout import KIND_BITS, Heap


@outlined
def push(heap: Heap, e: int, at_s: float, kind: int, subject: int) -> None:
    """Add an event."""
    payload = (kind << KIND_BITS) | subject
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
