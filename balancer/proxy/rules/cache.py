"""Answers that serve equal requests: bounded by bytes, the least recently used go first, and none outlives its time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Kept = TypeVar("Kept")

_OVERHEAD_BYTES = 512
"""Of an entry, beside its answer."""


class Cache(Generic[Kept]):
    """By key."""

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
