"""A device that executions share."""

import math
from collections import deque
from dataclasses import dataclass

from dev.reference.batcher import LiveRequest
from simulator.spec import DeviceSpec as Sharing


@dataclass(eq=False)
class Execution:
    """A batch in a slot of its worker."""

    slot: int
    number: int
    model: int
    batch: list[LiveRequest]
    rows: int
    started_s: float
    left_s: float
    """Device seconds."""
    lost: bool = False
    began_s: float = math.nan
    """When it came onto the device."""


class Device:
    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.running: list[Execution] = []
        self.waiting: deque[Execution] = deque()
        self.slow = 1.0
        self.stalled = False
        self.busy_s = 0.0
        self._updated_s = 0.0

    @property
    def rate(self) -> float:
        """Of each of those that run."""
        if self.stalled:
            return 0.0
        return 1 / (1 + self.sharing.interference * (len(self.running) - 1)) / self.slow

    @property
    def next_end_s(self) -> float:
        """Infinite: none."""
        if not self.running or self.rate == 0:
            return math.inf
        return self._updated_s + max(self._next().left_s, 0.0) / self.rate

    def update(self, now_s: float) -> None:
        """Bring what is left up to date; to be called before set or rate change."""
        elapsed_s = now_s - self._updated_s
        for execution in self.running:
            execution.left_s -= elapsed_s * self.rate
        if self.running and not self.stalled:
            self.busy_s += elapsed_s
        self._updated_s = now_s

    def ask(self, execution: Execution, now_s: float) -> None:
        self.waiting.append(execution)
        self._admit(now_s)

    def end_next(self, now_s: float) -> Execution:
        self.update(now_s)
        execution = self._next()
        self.running.remove(execution)
        self._admit(now_s)
        return execution

    def clear(self, now_s: float) -> None:
        self.update(now_s)
        self.running.clear()
        self.waiting.clear()

    def _admit(self, now_s: float) -> None:
        while self.waiting and len(self.running) < self.sharing.concurrency:
            self.update(now_s)
            self.running.append(self.waiting.popleft())
            self.running[-1].began_s = now_s

    def _next(self) -> Execution:
        return min(self.running, key=lambda execution: (execution.left_s, execution.slot))
