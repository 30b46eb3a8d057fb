"""Events by time, then kind, then subject, then order of scheduling."""

import heapq
from collections.abc import Callable
from enum import IntEnum
from functools import partial

from policies.hashing import mix, unit


class Kind(IntEnum):
    TICK = 0
    FAULT = 1
    FAULT_END = 2
    HOST_DONE = 3
    DEVICE_DONE = 4
    REACH = 5
    BATCH_TIMER = 6
    FIRST_TOKEN = 7
    OUTCOME = 8
    GIVE_UP = 9
    LEFT = 10
    HELD_LONG = 11
    PEER = 12
    SAMPLE = 13
    REPORT = 14
    AUTOSCALE = 15
    TIMELINE = 16
    ANSWER = 17
    ARRIVAL = 18


ENDLESS = {Kind.TICK, Kind.SAMPLE, Kind.REPORT, Kind.AUTOSCALE, Kind.TIMELINE}
"""Alone these can end no request that has not ended."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.ending = 0
        """Events scheduled that are not of the endless kinds."""
        self._heap: list[tuple[float, Kind, tuple[int, ...], int, Callable[[], None]]] = []
        self._scheduled = 0

    def at(
        self, time_s: float, kind: Kind, subject: tuple[int, ...], action: Callable[..., None], *what: object
    ) -> None:
        """Call `action(*what)` then."""
        call: Callable[[], None] = partial(action, *what)
        heapq.heappush(self._heap, (time_s, kind, subject, self._scheduled, call))
        self._scheduled += 1
        self.ending += kind not in ENDLESS

    def every(self, period_s: float, kind: Kind, action: Callable[[], None], j: int = 1) -> None:
        """Call `action()` at `j * period_s`, and for all larger j."""

        def once() -> None:
            action()
            self.every(period_s, kind, action, j + 1)

        self.at(j * period_s, kind, (), once)

    def step(self) -> None:
        """Let the next event happen."""
        self.now_s, kind, _, _, action = heapq.heappop(self._heap)
        self.ending -= kind not in ENDLESS
        action()


class Stream(IntEnum):
    NOISE_1 = 1
    NOISE_2 = 2
    WAY_JITTER = 3
    REPORT_JITTER = 4
    REPORT_LOSS = 5
    ERROR = 6
    PHASE = 7


def draw(seed: int, stream: Stream, k: int) -> float:
    """Uniform in [0, 1), by what it is for."""
    return unit(mix(mix(mix(seed) ^ stream) ^ k))
