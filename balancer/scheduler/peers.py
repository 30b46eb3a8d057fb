"""What one balancer has at workers, of which the others hear: from itself, or from the workers' agents, which ask it
and pass that on."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from balancer import bounds
from balancer.kernel.estimators.prefixes import Prefixes
from balancer.kernel.estimators.queue import Queue
from balancer.scheduler.events import PeerPicks, Report, SentPrompt
from policies.base import FloatArray

ANSWER_WITHIN_S = 0.005
"""What a report waits for balancers' answers, at most."""


class AtWorker(NamedTuple):
    in_flight: Mapping[str, int] = MappingProxyType({})
    """Requests by model."""
    waiting_tokens: float = 0.0
    """Of prompts of which nothing was generated yet."""


class UntoldPrompts:
    """Prompts that went to workers, and of which their agents were not told yet: the last ones of each."""

    def __init__(self) -> None:
        self._by_worker: dict[str, deque[SentPrompt]] = {}

    def add(self, worker: str, prompt: SentPrompt) -> None:
        self._by_worker.setdefault(worker, deque(maxlen=bounds.MAX_PROMPTS_TOLD)).append(prompt)

    def take(self, worker: str) -> tuple[SentPrompt, ...]:
        """Those of a worker, whose agent is told now; also where the worker is gone."""
        return tuple(self._by_worker.pop(worker, ()))


class PicksFleet(Protocol):
    """The parts of a fleet that a peer is told of."""

    names: list[str]
    index: dict[str, int]
    models: dict[str, int]
    queue: Queue
    prefixes: Prefixes
    revision: int
    peers_heard: int


@dataclass
class ToldSoFar:
    """What one peer was told."""

    events: FloatArray
    """Picks and ends by worker and model, `(n, m)`."""
    waiting: FloatArray
    """Tokens by worker, `(n,)`."""
    revision: int = -1
    """The fleet's revision when the peer was told last."""


class OwnPicks:
    """How many requests this balancer sent to each worker of each model, and how many of them ended."""

    def __init__(self, fleet: PicksFleet) -> None:
        self._fleet = fleet

    def nothing_told(self) -> ToldSoFar:
        return ToldSoFar(np.zeros((0, 0)), np.zeros(0))

    def since(self, told: ToldSoFar, most: int) -> list[PeerPicks]:
        """What has changed since a peer was told the last time, `most` at most; it counts as told then."""
        fleet, q = self._fleet, self._fleet.queue
        # Envoys may count meanwhile: none is to have ended that was not sent.
        done, done_rows = q.done_requests.copy(), q.done_rows.copy()
        sent, sent_rows = q.sent_requests, q.sent_rows
        events = sent + done
        if told.revision != fleet.revision or told.events.shape != events.shape:
            # Rows may stand for other workers now.
            told.events, told.waiting, told.revision = np.zeros(events.shape), np.zeros(len(events)), fleet.revision
        rows, columns = (found[:most].tolist() for found in np.nonzero(events != told.events))
        if not rows:
            return []
        models = {column: model for model, column in fleet.models.items()}
        told.events[rows, columns] = events[rows, columns]
        return [
            PeerPicks(
                *(fleet.names[row], models[column], int(sent[row, column]), float(sent_rows[row, column])),
                *(int(done[row, column]), float(done_rows[row, column])),
            )
            for row, column in zip(rows, columns, strict=True)
            if column in models
        ]

    def waits_since(self, told: ToldSoFar) -> list[tuple[str, float]]:
        """Workers where other tokens wait than a peer was told, and how many; after `since`."""
        waiting = self._fleet.prefixes.waiting_tokens.copy()
        if len(waiting) != len(told.waiting):
            return []
        rows = np.flatnonzero(waiting != told.waiting).tolist()
        told.waiting = waiting
        return [(self._fleet.names[row], float(waiting[row])) for row in rows]


def is_told_all(fleet: PicksFleet, worker: str) -> bool:
    """Whether all other balancers that the worker reports to tell this one of their picks, so that its agent need ask
    nobody."""
    if not fleet.peers_heard or worker not in fleet.index:
        return False
    return bool(fleet.queue.balancers[fleet.index[worker]] <= 1)


def peers_by_model(report: Report) -> Iterator[float]:
    """Of each of the report's models, the requests that other balancers have in flight there; not a number: not known.

    The counts are by model. Where several versions of one are ready, they could be of any.
    """
    counts = None if report.peers_in_flight is None else dict(report.peers_in_flight)
    ready = Counter(model.model for model in report.models if model.ready)
    for model in report.models:
        known = counts is not None and model.ready and ready[model.model] == 1
        yield counts.get(model.model, 0) if known and counts is not None else math.nan
