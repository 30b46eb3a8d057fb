"""What an agent knows of the server beside it, whichever kind that is."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Protocol

from balancer.scheduler.events import ModelReport


@dataclass(frozen=True, slots=True)
class ServerState:
    ready: bool
    incarnation: int
    models: tuple[ModelReport, ...]
    reached: bool = True
    """Whether it answered when it was last asked."""
    gone: bool = False
    """Whether nothing listens there."""


class ServerSource(Protocol):
    """Something that knows one server. `watch` runs beside it; `read` is called for every report."""

    looked: asyncio.Event
    """Set when it has looked for the first time."""

    async def watch(self) -> None: ...

    async def read(self) -> ServerState:
        """All that is known."""

    def close(self) -> None: ...


def next_incarnation(last: int) -> int:
    """The wall clock's milliseconds, so that it grows over restarts of the agent too."""
    return max(last + 1, time.time_ns() // 1_000_000)


class ProblemLog:
    """Says what is wrong with each source of a server when that changes, not with every look."""

    def __init__(self, logger: logging.Logger, server: str) -> None:
        self._logger, self._server = logger, server
        self._problems: dict[str, str] = {}

    def note(self, source: str, problem: str) -> None:
        """`problem`: empty: there is none."""
        if self._problems.get(source) == problem:
            return
        self._problems[source] = problem
        if problem:
            self._logger.warning("%s's %s cannot be read: %s", self._server, source, problem)
        else:
            self._logger.info("%s's %s can be read", self._server, source)
