"""How many requests of each model the fleet has room for, to tell whoever has a queue of their own."""

from typing import NamedTuple

import numpy as np

from balancer.scheduler.fleet import ANY_MODEL, Fleet

AHEAD = 2.0
"""Batches that a worker has room for at each instance: one that executes, and one that waits, lest it idles between."""
_MOST_GROWTH = 2.0
_FULL = 0.9
"""Of a generating worker's memory; beyond that it may have to begin some streams anew."""


class Room(NamedTuple):
    requests: float
    """At once, those that are there included."""
    in_flight: float
    """Of any client, as far as the balancer knows."""


def room(fleet: Fleet, now_s: float) -> dict[str, Room]:
    """By model. Workers that nothing may be sent to have none."""
    found = {}
    for model, column in fleet.models.items():
        if model == ANY_MODEL:
            continue
        in_flight = fleet.queue.known_requests[:, column]
        rows_each = max(float(fleet.queue.known_rows[:, column].sum()) / max(float(in_flight.sum()), 1.0), 1.0)
        rows = fleet.service.max_batch_rows[:, column] * fleet.service.instances[:, column]
        memory, held = fleet.prefixes.memory_tokens[:, column], fleet.prefixes.held_tokens[:, column]
        # What is in flight fills the memory so far; with nothing to measure by, room grows as long as nothing waits.
        fits = np.minimum(_FULL * memory / np.maximum(held, 1.0), _MOST_GROWTH)
        generating = np.where(fleet.prefixes.waiting_tokens > 0, in_flight, in_flight * fits + 1.0)
        slots = np.where(memory > 0, generating, np.maximum(AHEAD * rows / rows_each, 1.0))
        eligible = fleet.eligible(model, "", now_s)
        found[model] = Room(float(slots[eligible].sum()), float(in_flight[eligible].sum()))
    return found
