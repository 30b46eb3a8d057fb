"""Answers that are kept: for equal requests (`Cache`), and for ids that are executed once (`Once`)."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Running = TypeVar("Running")
Kept = TypeVar("Kept")
Key = tuple[object, ...]

_MOST_OF_TENANT = 0.5
_OVERHEAD_BYTES = 512
"""Of an entry of the cache, beside its answer."""


class Cache(Generic[Kept]):
    """Bounded by bytes; the least recently used go first, and none outlives its time."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.kept_bytes = 0
        self._entries: dict[Hashable, tuple[Kept, int, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now_s: float) -> Kept | None:
        """The answer, which has then been used; None: there is none, or it is too old."""
        found = self._entries.pop(key, None)
        if found is None:
            return None
        kept, size_bytes, until_s = found
        if now_s >= until_s:
            self.kept_bytes -= size_bytes
            return None
        self._entries[key] = found
        return kept

    def put(self, key: Hashable, kept: Kept, size_bytes: int, until_s: float) -> None:
        """Keep an answer until then, if it fits at all."""
        size_bytes += _OVERHEAD_BYTES
        before = self._entries.pop(key, None)
        if before is not None:
            self.kept_bytes -= before[1]
        if size_bytes > self.most_bytes:
            return
        self._entries[key] = kept, size_bytes, until_s
        self.kept_bytes += size_bytes
        while self.kept_bytes > self.most_bytes:
            self.kept_bytes -= self._entries.pop(next(iter(self._entries)))[1]


@dataclass(slots=True)
class Entry(Generic[Running, Kept]):
    tenant: str
    running: Running | None
    """What executes it; None: it has ended."""
    kept: Kept | None = None
    """Its answer; None with `running` None: there was no room for that."""
    size_bytes: int = 0


class Once(Generic[Running, Kept]):
    """The ids of the last seconds, so that none is executed twice: bounded by number, and by bytes of answers kept.

    Where there is no room for another id, its request is refused: one that is forgotten could be executed again.
    """

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self.most_entries, self.most_bytes = most_entries, most_bytes
        self.kept_bytes = 0
        self._entries: dict[Key, Entry[Running, Kept]] = {}
        self._answers: dict[Key, None] = {}
        """Of entries with an answer, oldest first."""
        self._ends: list[tuple[float, int, Key]] = []
        self._ended = 0
        self._of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Key, now_s: float) -> Entry[Running, Kept] | None:
        """What is known of an id; None: it is new."""
        self._forget(now_s)
        return self._entries.get(key)

    def has_room(self, tenant: str) -> bool:
        """Whether another id can be remembered, of this tenant, who may have a part of the room."""
        own = self._of_tenant[tenant] < max(1, self.most_entries * _MOST_OF_TENANT)
        return own and len(self._entries) < self.most_entries

    def begin(self, key: Key, tenant: str, running: Running) -> None:
        self._entries[key] = Entry(tenant, running)
        self._of_tenant[tenant] += 1

    def executed(self, key: Key, answer: Kept, size_bytes: int, until_s: float) -> None:
        """It has ended, and a worker may have executed it."""
        entry = self._entries[key]
        entry.running = None
        self._ended += 1
        heapq.heappush(self._ends, (until_s, self._ended, key))
        if size_bytes > self.most_bytes:
            return
        entry.kept, entry.size_bytes = answer, size_bytes
        self._answers[key] = None
        self.kept_bytes += size_bytes
        while self.kept_bytes > self.most_bytes:
            self._drop_answer(next(iter(self._answers)))

    def not_executed(self, key: Key) -> None:
        """It has ended, and certainly no worker began with it."""
        self._remove(key)

    def _forget(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            self._remove(heapq.heappop(self._ends)[2])

    def _remove(self, key: Key) -> None:
        self._drop_answer(key)
        entry = self._entries.pop(key)
        self._of_tenant[entry.tenant] -= 1
        if not self._of_tenant[entry.tenant]:
            del self._of_tenant[entry.tenant]

    def _drop_answer(self, key: Key) -> None:
        entry = self._entries[key]
        if key in self._answers:
            del self._answers[key]
            self.kept_bytes -= entry.size_bytes
            entry.kept, entry.size_bytes = None, 0
