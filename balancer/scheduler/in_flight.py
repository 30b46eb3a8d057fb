"""A request in flight, and what its end, or the first token of its answer, says of who has it."""

from __future__ import annotations

import math
from typing import NamedTuple

from balancer.kernel import counting
from balancer.kernel.estimators.prefixes import computed
from balancer.scheduler.canary.selector import Ticket
from balancer.scheduler.events import Finished, SentPrompt
from balancer.scheduler.fleet import Fleet
from policies.base import Request


class PromptInFlight(NamedTuple):
    to_compute: float
    """Its tokens that count as waiting at the worker."""
    ahead: float
    """As `DecisionScratch` had it at the pick, and `beside`."""
    beside: float
    first_s: float = math.nan
    """When the first token of the answer came."""


class InFlight(NamedTuple):
    worker: str
    column: int
    rows: float
    key: int | None
    at_s: float
    ticket: Ticket | None
    chosen: bool
    """Whether the policy chose the worker among several: then no client did."""
    prompt: PromptInFlight | None = None


def prompt_counted_last(fleet: Fleet, request: Request, worker: str) -> PromptInFlight | None:
    """What to keep of the prompt of `request`, which the router has just counted in; None: it has no prompt. Others
    will hear of it."""
    if not request.prompt_tokens:
        return None
    d = fleet.decision
    fleet.untold_prompts.add(worker, SentPrompt(request.model, float(request.prompt_tokens), request.prefix))
    return PromptInFlight(float(d.to_compute[0]), float(d.ahead[0]), float(d.beside[0]))


def take_out_prompt(fleet: Fleet, sent: InFlight) -> None:
    """It ended: what it has to compute no longer waits."""
    row = fleet.index.get(sent.worker)
    if row is not None and sent.prompt is not None and sent.prompt.to_compute:
        computed(fleet.prefixes, row, sent.prompt.to_compute)


def first_token(fleet: Fleet, sent: InFlight, now_s: float) -> InFlight:
    """The first token of its answer has come."""
    row, prompt = fleet.index.get(sent.worker), sent.prompt
    if row is None or prompt is None or not prompt.to_compute:
        return sent
    take_out_prompt(fleet, sent)
    counting.learn_first_token(fleet, 0, row, sent.column, prompt.ahead, now_s - sent.at_s)
    return sent._replace(prompt=prompt._replace(to_compute=0.0, first_s=now_s))


def learn_answer(fleet: Fleet, sent: InFlight, event: Finished, now_s: float) -> None:
    """Learn from the answer to a prompt, before it is counted out."""
    if sent.prompt is not None and event.ok and event.output_tokens and event.worker == sent.worker:
        over_s = now_s if math.isnan(event.said_s) else event.said_s
        seconds = 0.0 if math.isnan(sent.prompt.first_s) else max(over_s - sent.prompt.first_s, 0.0)
        row = fleet.index[sent.worker]
        counting.learn_tokens(fleet, 0, row, sent.column, sent.prompt.beside, seconds, event.output_tokens)
