"""When a worker may stop: every balancer knows that it drains, and its Triton has nothing left to do."""

from __future__ import annotations

import asyncio
import logging
import math

from balancer.agent.quiet import ended, is_busy, quiet_s
from balancer.agent.triton_source import TritonState
from balancer.reports.streams import Replicas

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_RECONNECT_S = 2.0
"""Without any balancer connected for so long, there is none to tell."""


class DrainError(Exception):
    """The worker was not drained in time; the message says what is missing."""


class Drain:
    """Whether an agent's worker drains, and how far that has got.

    Nothing is left once nothing is queued, the estimate of what executes is zero, and no request ended for `quiet_s`.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._asked = False
        self._incarnation = -1
        self._finished = -1
        self._busy_s = -math.inf
        self._quiet_needed_s = quiet_s(())

    @property
    def asked(self) -> bool:
        """Whether the worker is to drain, until its Triton starts anew."""
        return self._asked

    def begin(self) -> None:
        """The worker is to get nothing new."""
        if not self._asked:
            logger.info("asked to drain: the balancers are told that this worker gets nothing new")
        self._asked = True

    def observe(self, triton: TritonState, now_s: float) -> None:
        """Take in what Triton says now."""
        if triton.incarnation != self._incarnation:
            if self._asked:
                logger.info("Triton started anew: the worker drains no more")
            self._incarnation, self._asked, self._finished = triton.incarnation, False, -1
        finished, busy = ended(triton.models), is_busy(triton.models)
        unknown = not triton.reached and not triton.gone
        if busy or unknown or (triton.reached and finished != self._finished):
            self._busy_s = now_s
        if triton.reached:
            self._finished = finished
            self._quiet_needed_s = quiet_s(triton.models)

    async def drained(self) -> None:
        """Wait until every connected balancer knows, and then until nothing is left.

        Raises:
            DrainError: if no balancer is connected.
        """
        await self._told()
        loop = asyncio.get_running_loop()
        told_s = loop.time()
        while loop.time() - max(self._busy_s, told_s) < self._quiet_needed_s:
            await asyncio.sleep(_POLL_S)

    def missing(self) -> str:
        """What `drained` waits for."""
        if unaware := self._replicas.unaware_of_draining:
            return f"balancers that have not acknowledged it: {', '.join(unaware)}"
        quiet_s = asyncio.get_running_loop().time() - self._busy_s
        return f"Triton was busy {max(quiet_s, 0.0):.1f} s ago, and is to be idle for {self._quiet_needed_s:.1f} s"

    async def _told(self) -> None:
        loop = asyncio.get_running_loop()
        alone_since_s = loop.time()
        while True:
            if self._replicas.connected:
                alone_since_s = loop.time()
                if not self._replicas.unaware_of_draining:
                    return
            elif loop.time() - alone_since_s > _RECONNECT_S:
                raise DrainError("no balancer is connected, so none knows that this worker drains; see the agent's log")
            await asyncio.sleep(_POLL_S)
