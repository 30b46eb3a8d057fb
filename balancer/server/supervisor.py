"""Keeps processes running: one that dies is replaced, one that cannot serve is not tried for ever."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess

from balancer.errors import OperatorError

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
"""Between the death of a process and its replacement; doubled each time that one dies soon."""
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 10.0
"""A process that served for so long had no trouble with its start."""
_MOST_STARTS = 8
"""In a row that did not get to serve, over some two minutes; then the process is given up."""
_STOP_S = 5.0

Work = Callable[[int, Callable[[], None]], None]
"""What a process does, by its number; it calls the function once it serves. Pickled, so a top-level function or an
object of one."""


class Supervisor:
    """Runs `count` processes that do `work`."""

    def __init__(self, count: int, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self._children = [_Child(number, work, context) for number in range(count)]
        self._stopped = False

    def run(self) -> None:
        """Return once told to stop by SIGINT or SIGTERM, and all have ended.

        Raises:
            OperatorError: a process ended before it ever served, or none is left; with what it said.
        """
        wake_read, wake_write = os.pipe()

        def on_signal(_number: int, _: object) -> None:
            self._stopped = True
            os.write(wake_write, b"x")

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)
        try:
            while not self._stopped:
                for child in self._children:
                    child.start_if_due()
                if all(child.given_up for child in self._children):
                    raise OperatorError(self._children[0].trouble)
                due_s = [child.due_in_s for child in self._children if child.waits]
                waited = [waitable for child in self._children for waitable in child.waitables]
                connection.wait([*waited, wake_read], min(due_s, default=None))
                for child in self._children:
                    child.look()
        finally:
            for child in self._children:
                child.terminate()
            for child in self._children:
                child.join()


class _Child:
    """One process, and those before it of the same number."""

    def __init__(self, number: int, work: Work, context: SpawnContext) -> None:
        self._number = number
        self._work = work
        self._context = context
        self._process: SpawnProcess | None = None
        self._told: Connection | None = None
        self._served_ever = False
        self._serving_since_s: float | None = None
        self._soon_dead = 0
        """Starts in a row after which it died soon."""
        self._unserved = 0
        """Starts in a row that did not get to serve."""
        self._start_s = 0.0
        self.trouble = ""

    @property
    def given_up(self) -> bool:
        """It will not be started again."""
        return self._unserved >= _MOST_STARTS

    @property
    def waits(self) -> bool:
        """To be started at a time to come."""
        return self._process is None and not self.given_up

    @property
    def due_in_s(self) -> float:
        """Seconds until then."""
        return max(self._start_s - time.monotonic(), 0.0)

    @property
    def waitables(self) -> list[int | Connection]:
        """What tells that there is something to `look` at."""
        told = [] if self._told is None else [self._told]
        return [*told, *([] if self._process is None else [self._process.sentinel])]

    def start_if_due(self) -> None:
        """Start it, if it is time."""
        if self.waits and not self.due_in_s:
            self._told, tell = self._context.Pipe(duplex=False)
            self._serving_since_s = None
            self._process = self._context.Process(target=_do, args=(self._work, self._number, tell), daemon=True)
            self._process.start()
            tell.close()  # ours; so that its end is seen when the process is gone

    def look(self) -> None:
        """Hear what it says, and whether it has died; OperatorError where it never served."""
        if self._told is not None and self._told.poll():
            self._hear(self._told)
        if self._process is None or self._process.is_alive():
            return
        if self._told is not None:
            while self._told is not None and self._told.poll():
                self._hear(self._told)
        status, self._process = self._process.exitcode, None
        died = {"process_number": self._number, "exit_status": status}
        served, now_s = self._serving_since_s, time.monotonic()
        self._unserved = self._unserved + 1 if served is None else 0
        self._soon_dead = 0 if served is not None and now_s - served > _STEADY_S else self._soon_dead + 1
        if not self._served_ever:
            raise OperatorError(
                self.trouble or f"process {self._number} ended with status {status} before it served; see its log above"
            )
        if self.given_up:
            self.trouble = self.trouble or f"process {self._number} ended with status {status}"
            logger.error("process given up, it did not get to serve: %s", self.trouble, extra=died)
            return
        pause_s = min(_FIRST_PAUSE_S * 2 ** max(self._soon_dead - 1, 0), _LONGEST_PAUSE_S)
        self._start_s = now_s + pause_s
        logger.error("process died, starting another in %g s %s", pause_s, self.trouble, extra=died)

    def _hear(self, told: Connection) -> None:
        try:
            trouble = told.recv()
        except EOFError:
            told.close()
            self._told = None
            return
        self.trouble = trouble
        if not trouble:
            self._served_ever = True
            self._serving_since_s = time.monotonic()

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process is not None:
            self._process.terminate()

    def join(self) -> None:
        """Wait until it has ended, and see to it."""
        if self._process is not None:
            self._process.join(_STOP_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()


def _do(work: Work, number: int, tell: Connection) -> None:
    """In the process: do the work, and tell the supervisor that it serves ("") or why it does not."""

    def serving() -> None:
        tell.send("")

    try:
        work(number, serving)
    except OperatorError as error:
        with contextlib.suppress(OSError):  # the supervisor is gone
            tell.send(str(error))
        sys.exit(1)
