"""Prompts in flight at models that generate: what counts as waiting, and what is learned of how long they take."""

from __future__ import annotations

import math
from typing import NamedTuple

from balancer.kernel import counting
from balancer.kernel.estimators.prefixes import computed
from balancer.scheduler.events import Finished
from balancer.scheduler.fleet import Fleet
from policies.base import Request


class PromptInFlight(NamedTuple):
    worker: str
    column: int
    sent_s: float
    to_compute: float
    """Its tokens that count as waiting at the worker."""
    ahead: float
    """As `DecisionScratch` had it at the pick, and `beside`."""
    beside: float
    first_s: float = math.nan
    """When the first token of the answer came."""


def counted_last(fleet: Fleet, request: Request, worker: str, column: int, now_s: float) -> PromptInFlight | None:
    """Of the request that was counted in last; None where it has no prompt."""
    if not request.prompt_tokens:
        return None
    d = fleet.decision
    return PromptInFlight(worker, column, now_s, float(d.to_compute[0]), float(d.ahead[0]), float(d.beside[0]))


def first_token(fleet: Fleet, prompt: PromptInFlight, now_s: float) -> PromptInFlight:
    """Its first token has come."""
    row = fleet.index.get(prompt.worker)
    if row is None or not prompt.to_compute:
        return prompt
    computed(fleet.prefixes, row, prompt.to_compute)
    counting.learn_first_token(fleet, 0, row, prompt.column, prompt.ahead, now_s - prompt.sent_s)
    return prompt._replace(to_compute=0.0, first_s=now_s)


def out_of_flight(fleet: Fleet, prompt: PromptInFlight) -> None:
    row = fleet.index.get(prompt.worker)
    if row is not None and prompt.to_compute:
        computed(fleet.prefixes, row, prompt.to_compute)


def answered(fleet: Fleet, prompt: PromptInFlight, event: Finished, now_s: float) -> None:
    """Learn from its answer, before it is counted out."""
    if event.ok and event.output_tokens and event.worker == prompt.worker:
        seconds = 0.0 if math.isnan(prompt.first_s) else now_s - prompt.first_s
        row = fleet.index[prompt.worker]
        counting.learn_tokens(fleet, 0, row, prompt.column, prompt.beside, seconds, event.output_tokens)
