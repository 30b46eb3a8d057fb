"""What executions on each worker took, by what came to it, and when its answers came.

A worker's queue at any moment is known where it is known what came and what was answered: what came goes into batches
as Triton makes them, and a batch ends when its answers come. What is not known is how many executions a device has at
once, and how much they slow each other down. Each number at once says when executions had the device to themselves, and
when with others; and so what they took of it. The right one makes executions of one size most alike: the likelihood of
the answers' times tells which it is. Nothing is simulated, and who routed by what does not matter.

The way to a worker and back takes now more and now less, so an answer may seem to come before it could. Where times
err by a share of them and by some seconds, their generalised logarithm errs alike wherever they are (Durbin, Hardin,
Hawkins and Rocke, "A variance-stabilizing transformation for gene-expression microarray data", 2002).
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from policies.base import FloatArray

MOST_AT_ONCE = 4
INTERFERENCES = np.linspace(0.0, 1.0, 21)
_LEAST_S = 1e-6
_LEAST_SPREAD, _LEAST_SHARE = 0.01, 0.05
_CONTRADICTION = 8.0
"""What an answer that could not have come costs, as a logarithm of the likelihood."""
_MOST_EARLY = 12.0
"""Times the jitter that an answer may come before it could have."""


class Answered(NamedTuple):
    """A request that a worker has answered."""

    model: str
    rows: float
    level: int
    """Of priority, 1 the highest."""
    came_s: float
    end_s: float
    key: int = 0
    """0: none."""


@dataclass(slots=True, eq=False)
class Execution:
    model: str
    requests: list[Answered]
    begin_s: float
    """When an instance took it, which need not be when the device did."""
    end_s: float
    shared_s: FloatArray = field(default_factory=lambda: np.zeros(MOST_AT_ONCE))
    """Seconds on the device, by how many were there."""
    at_end: int = 0
    """How many were there at the end; 0: it ended before it could have begun."""
    early_s: float = 0.0
    """By how much it ended before it could have begun."""
    new_keys: int = 0
    """How many of its requests have no key, or one that this worker had not served before."""

    @property
    def alone(self) -> bool:
        """Whether it had the device to itself from when it came until it ended."""
        return self.begin_s <= self.requests[0].came_s and bool(
            self.shared_s[0] >= self.end_s - self.begin_s - _LEAST_S
        )

    @property
    def rows(self) -> int:
        return round(sum(one.rows for one in self.requests))


class Errors(NamedTuple):
    """How much the observed times of executions of one size vary."""

    share: float = 0.0
    """Coefficient of variation of what an execution takes."""
    jitter_s: float = 0.0
    """Standard deviation of the time on the way, however long the execution takes."""

    def logarithm(self, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Generalised logarithms, and the logarithms of their slopes; seconds may be negative where there is jitter."""
        # Of most, both ends are an answer's.
        flat_s = np.sqrt(2) * self.jitter_s / max(self.share, _LEAST_SHARE)
        if not flat_s:
            logs = np.log(np.maximum(seconds, _LEAST_S))
            return logs, -logs
        root_s = np.hypot(seconds, flat_s)
        return np.log((seconds + root_s) / 2), -np.log(root_s)

    def spread(self, off: FloatArray) -> float:
        """Scale of the distances from the median, `(k,)`: the root of their mean square for normal errors. With jitter,
        their mean: the difference of two exponential delays has Laplace's distribution.
        """
        return float(np.abs(off).mean() if self.jitter_s else np.sqrt(np.square(off).mean()))


EXACT = Errors()


class Room(NamedTuple):
    """Of a model on a worker."""

    max_batch_rows: int
    instances: int


def executions_of(
    answered: Iterable[Answered], rooms: Mapping[str, Room], at_once: int, way_s: float
) -> list[Execution]:
    """Those of one worker whose device has so many at once, in the order in which they ended; `way_s`: what an answer
    takes beyond waiting and execution."""
    seen = (one._replace(came_s=min(one.came_s + way_s, one.end_s)) for one in answered)
    coming, worker, found = deque(sorted(seen, key=attrgetter("came_s"))), _Worker(rooms, at_once), list[Execution]()
    while coming or worker.begun:
        if worker.begun and (not coming or worker.begun[0][0] <= coming[0].came_s):
            found.append(worker.end())
        else:
            worker.take(coming.popleft())
    return found


class _Worker:
    def __init__(self, rooms: Mapping[str, Room], at_once: int) -> None:
        self._rooms, self._at_once = rooms, at_once
        self._number = count()
        self._now_s = -np.inf
        self._queues: dict[str, list[tuple[int, int, Answered]]] = {model: [] for model in rooms}
        self._free = {model: room.instances for model, room in rooms.items()}
        self.begun: list[tuple[float, int, Execution]] = []
        """A heap by their ends."""
        self._waiting: deque[Execution] = deque()
        """For the device, in the order in which they began."""
        self._running: list[Execution] = []
        self._keys: set[int] = set()

    def take(self, request: Answered) -> None:
        self._go_to(request.came_s)
        heapq.heappush(self._queues[request.model], (request.level, next(self._number), request))
        self._begin(request.model)

    def end(self) -> Execution:
        """The first to."""
        end_s, _, one = heapq.heappop(self.begun)
        self._go_to(end_s)
        if one in self._running:
            one.at_end = len(self._running)
            self._running.remove(one)
        else:
            one.early_s += min(each.end_s for each in self._running) - end_s
            self._waiting.remove(one)
        self._admit()
        self._free[one.model] += 1
        self._begin(one.model)
        return one

    def _go_to(self, until_s: float) -> None:
        for one in self._running:
            one.shared_s[len(self._running) - 1] += until_s - self._now_s
        self._now_s = until_s

    def _begin(self, model: str) -> None:
        """Batches, as large as may be, while instances are free."""
        queue, most = self._queues[model], self._rooms[model].max_batch_rows
        while queue and self._free[model]:
            batch = [heapq.heappop(queue)[2]]
            rows = batch[0].rows
            while queue and rows + queue[0][2].rows <= most:
                batch.append(heapq.heappop(queue)[2])
                rows += batch[-1].rows
            self._free[model] -= 1
            # An answer may have come before there was room for it.
            end_s = max(each.end_s for each in batch)
            one = Execution(model, batch, self._now_s, max(end_s, self._now_s))
            one.early_s = max(self._now_s - end_s, 0.0)
            one.new_keys = sum(not each.key or each.key not in self._keys for each in batch)
            self._keys.update(each.key for each in batch)
            heapq.heappush(self.begun, (one.end_s, next(self._number), one))
            self._waiting.append(one)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            self._running.append(self._waiting.popleft())


class Sharing(NamedTuple):
    """How executions share a device, and how likely that makes the times of the answers."""

    at_once: int
    interference: float
    log_likelihood: float
    found: tuple[tuple[str, Execution], ...]
    """With the worker, those that could have been."""

    def work_s(self) -> FloatArray:
        """What each would have taken alone, `(k,)`."""
        return _work_s([one.shared_s for _, one in self.found], self.interference)


def _work_s(shared_s: Sequence[FloatArray], interference: float) -> FloatArray:
    rates = 1 / (1 + interference * np.arange(MOST_AT_ONCE))
    work_s: FloatArray = np.maximum(np.array(shared_s).reshape(-1, MOST_AT_ONCE) @ rates, _LEAST_S)
    return work_s


def sharings(
    answered: Mapping[str, Sequence[Answered]],
    rooms: Mapping[str, Mapping[str, Room]],
    at_once: int,
    way_s: float,
    errors: Errors = EXACT,
) -> Iterator[Sharing]:
    """Of the workers of one kind, by name, which have room for so much by model; by how much executions interfere.

    Args:
        answered: By worker.
        rooms: By worker and model.
        at_once: Executions on a device.
        way_s: What an answer takes beyond waiting and execution.
        errors: Of the answers' times.
    """
    every = [(name, one) for name, own in answered.items() for one in executions_of(own, rooms[name], at_once, way_s)]
    found = tuple((name, one) for name, one in every if one.at_end)
    possible = [(name, one) for name, one in every if one.early_s <= _MOST_EARLY * errors.jitter_s]
    # What a cache may save it saves of keys that were seen.
    alike: defaultdict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    for place, (name, one) in enumerate(possible):
        alike[name, one.model, one.rows, one.new_keys].append(place)
    shared_s, early_s = [one.shared_s for _, one in possible], np.array([one.early_s for _, one in possible])
    others = np.array([max(one.at_end - 1, 0) for _, one in possible], np.float64)
    for interference in INTERFERENCES if at_once > 1 else (1.0,):
        logs, slopes = errors.logarithm(_work_s(shared_s, float(interference)) - early_s)
        # Of times of ends, where the logarithms of what executions of one size take are normal.
        likely = -_CONTRADICTION * (len(every) - len(possible)) + float(slopes.sum())
        likely -= float(np.log1p(interference * others).sum())
        off: defaultdict[tuple[str, int], list[FloatArray]] = defaultdict(list)
        for (_, model, _, new_keys), places in alike.items():
            off[model, new_keys].append(logs[places] - np.median(logs[places]))
        for several in off.values():
            own = np.concatenate(several)
            likely -= len(own) * float(np.log(max(errors.spread(own), _LEAST_SPREAD)))
        yield Sharing(at_once, float(interference), likely, found)
