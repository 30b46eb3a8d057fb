"""Garbage collection in a process that serves for months."""

from __future__ import annotations

import gc


def settle() -> None:
    """Call once at the end of the start: what it made is looked through no more.

    A full collection over all of it would hold requests for over 10 ms. Python makes one only once the objects that
    survived two collections since the last are a quarter of those that survived that: the collection after the freeze
    finds next to none, so full ones are frequent from then on, and cheap. Without it, connections whose objects refer
    to each other pile up, and the process grows by tens of kilobytes for each.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
