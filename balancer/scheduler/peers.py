"""What one balancer has at a worker, of which the others hear: the worker's agent asks for it, and passes it on."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from balancer import bounds
from balancer.scheduler.events import Report, SentPrompt

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


def peers_by_model(report: Report) -> Iterator[float]:
    """Of each of the report's models, the requests that other balancers have in flight there; not a number: not known.

    The counts are by model. Where several versions of one are ready, they could be of any.
    """
    counts = None if report.peers_in_flight is None else dict(report.peers_in_flight)
    ready = Counter(model.model for model in report.models if model.ready)
    for model in report.models:
        known = counts is not None and model.ready and ready[model.model] == 1
        yield counts.get(model.model, 0) if known and counts is not None else math.nan
