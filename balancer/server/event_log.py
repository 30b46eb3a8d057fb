"""The last events in the life of a process, for people: few, bounded, and told in words."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["config", "worker", "guard", "rollout", "refused", "policy", "ready"]
Level = Literal["info", "warning", "error"]

MOST_EVENTS = 100
_MOST_CHARACTERS = 400
_MOST_NAMES = 5
_SAME_S = 60.0
"""What repeats within that time is one event, counted on."""
_LOOKED_AT = 10
"""Of the newest events, how many it may repeat."""


@dataclass(slots=True)
class Event:
    """Something that happened, once or several times."""

    at_s: float
    last_s: float
    count: int
    kind: Kind
    level: Level
    words: str


class EventLog:
    def __init__(self, unix_clock: Callable[[], float] = time.time) -> None:
        self._unix_clock = unix_clock
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def add(self, kind: Kind, level: Level, words: str, count: int = 1) -> None:
        now_s = self._unix_clock()
        words = words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]}..."
        for event in list(self._events)[-_LOOKED_AT:]:
            if (event.kind, event.words) == (kind, words) and now_s - event.last_s <= _SAME_S:
                event.last_s, event.count = now_s, event.count + count
                return
        self._events.append(Event(now_s, now_s, count, kind, level, words))

    def newest_first(self) -> list[Event]:
        """All that are kept, by when they last happened."""
        return sorted(self._events, key=lambda event: -event.last_s)


def some(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    listed = sorted(names)
    more = len(listed) - _MOST_NAMES
    return ", ".join(listed[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
