"""A request that was sent, until its outcome is known."""

from __future__ import annotations

from typing import NamedTuple

from balancer.scheduler.canary.selector import Ticket


class InFlight(NamedTuple):
    """What its end is counted by."""

    worker: str
    column: int
    rows: float
    key: int | None
    at_s: float
    ticket: Ticket | None
    chosen: bool
    """Whether the policy chose the worker among several: then no client did."""


def drop(sent: InFlight | None) -> None:
    """What will have no outcome is no evidence."""
    if sent is not None and sent.ticket is not None:
        sent.ticket.dropped()
