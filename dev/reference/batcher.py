"""Triton's dynamic batcher: one queue a worker and model."""

import math
from dataclasses import dataclass
from itertools import accumulate, chain

from simulator.spec import BatchingSpec


@dataclass(eq=False)
class LiveRequest:
    """A request from its arrival to its end."""

    index: int
    model: int
    rows: int
    work: float
    key: int
    level: int
    """From 0."""
    balancer: int
    client: int
    arrival_s: float
    number: int = -1
    """The router's."""
    targets: tuple[int, ...] = ()
    """The worker picked, then the fallbacks."""
    attempts: int = 0
    sent_s: float = math.nan
    queued_s: float = math.nan
    sequence: int = -1
    starts: bool = False
    responses: int = 0
    first_share: float = 1.0
    tokens: int = 1
    """Of its prompt."""
    output: int = 1
    """Tokens to generate."""
    blocks: tuple[tuple[int, int], ...] = ()
    """That its prompt begins with, each with its model."""
    generated: int = 0
    cached: float = math.nan
    """Of its prompt, when it was admitted first."""
    place: int = -1
    """Where its balancer holds it; -1: it does not."""
    ended: bool = False

    @property
    def worker(self) -> int:
        """Where the last attempt went."""
        return self.targets[self.attempts - 1]


class Queue:
    def __init__(self, batching: BatchingSpec) -> None:
        self.batching = batching
        self.levels: list[list[LiveRequest]] = [[] for _ in range(batching.priority_levels + 1)]
        """First the priority levels, last those delayed by the timeout."""
        self.timer_s = math.nan

    def __len__(self) -> int:
        return sum(map(len, self.levels))

    def full(self, level: int) -> bool:
        most = self.batching.max_queue_requests
        return most > 0 and len(self.levels[level]) >= most

    def push(self, request: LiveRequest, now_s: float) -> None:
        request.queued_s = now_s
        self.levels[request.level].append(request)

    def expire(self, now_s: float) -> list[LiveRequest]:
        """Take out what waited too long; returns what is to be rejected."""
        late = [r for level in self.levels[:-1] for r in level if now_s - r.queued_s > self.batching.timeout_s]
        for level in self.levels[:-1]:
            level[:] = [r for r in level if r not in late]
        if self.batching.timeout_action == "reject":
            return late
        self.levels[-1] += late
        return []

    def take(self, now_s: float) -> tuple[list[LiveRequest], float]:
        """Remove and return the batch that starts now; or none, and when to look again."""
        b = self.batching
        waiting = list(chain(*self.levels))
        rows = list(accumulate(r.rows for r in waiting))
        fitting = max(1, sum(total <= b.max_batch_rows for total in rows))
        preferred = b.preferred_rows or (b.max_batch_rows,)
        due_s = min(r.queued_s for r in waiting[:fitting]) + b.queue_delay_s
        count = fitting
        if b.queue_delay_s > 0 and due_s > now_s:
            best = [c for c in range(fitting, 0, -1) if rows[c - 1] in preferred]
            if best:
                count = best[0]
            elif fitting == len(waiting) and rows[-1] < max(preferred):
                return [], due_s
        batch = waiting[:count]
        for level in self.levels:
            level[:] = [r for r in level if r not in batch]
        return batch, math.nan

    def remove(self, request: LiveRequest) -> None:
        """Take it out, where it is there."""
        for level in self.levels:
            level[:] = [r for r in level if r is not request]

    def clear(self) -> list[LiveRequest]:
        """Remove and return all, in order."""
        everything = list(chain(*self.levels))
        for level in self.levels:
            level.clear()
        return everything
