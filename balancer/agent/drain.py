"""The drain of the agent's own worker before its Triton stops: every balancer knows, and nothing is left to do."""

import asyncio
import logging

from balancer.agent.quiet import Activity
from balancer.agent.server_state import ServerState
from balancer.reports.replicas import Replicas

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
        self.draining = False
        """Whether the worker is to drain, until its Triton starts anew."""
        self._incarnation = -1
        self._activity = Activity()

    def begin(self) -> None:
        if not self.draining:
            logger.info("asked to drain: the balancers are told that this worker gets nothing new")
        self.draining = True

    def observe(self, triton: ServerState, now_s: float) -> None:
        if triton.incarnation != self._incarnation:
            if self.draining:
                logger.info("Triton started anew: the worker drains no more")
            self._incarnation, self.draining, self._activity.finished = triton.incarnation, False, -1
        if triton.reached:
            self._activity.observe(triton.models, now_s)
        elif not triton.gone:
            self._activity.busy_s = now_s  # nobody knows what it does

    async def drained(self) -> None:
        """Wait until every connected balancer knows, and then until nothing is left.

        Raises:
            DrainError: if no balancer is connected.
        """
        await self._acknowledged()
        loop = asyncio.get_running_loop()
        acknowledged_s = loop.time()
        while loop.time() - max(self._activity.busy_s, acknowledged_s) < self._activity.quiet_needed_s:
            await asyncio.sleep(_POLL_S)

    def missing(self) -> str:
        """What `drained` waits for."""
        if unaware := self._replicas.unaware_of_draining:
            return f"balancers that have not acknowledged it: {', '.join(unaware)}"
        quiet_s, needed_s = asyncio.get_running_loop().time() - self._activity.busy_s, self._activity.quiet_needed_s
        return f"Triton was busy {max(quiet_s, 0.0):.1f} s ago, and is to be idle for {needed_s:.1f} s"

    async def _acknowledged(self) -> None:
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
