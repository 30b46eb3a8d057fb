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
"""A process that served for so long started well."""
_MOST_STARTS = 8
"""In a row that did not get to serve, over some two minutes; then the process is given up."""
_STOP_S = 5.0

Work = Callable[[int, Callable[[], None]], None]
"""What a process does, by its number; it calls the function once it serves. Pickled, so a top-level function or an
object of one."""


class Supervisor:
    def __init__(self, count: int, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self._children = [_Child(number, work, context) for number in range(count)]
        self._stopped = False

    def run(self) -> None:
        """Return once SIGINT or SIGTERM came, and all have ended.

        Raises:
            OperatorError: a process ended before it ever served, or none is left; with its message.
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
                    raise OperatorError(self._children[0].failure)
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
    def __init__(self, number: int, work: Work, context: SpawnContext) -> None:
        self._number = number
        self._work = work
        self._context = context
        self._process: SpawnProcess | None = None
        self._messages: Connection | None = None
        self._served_ever = False
        self._serving_since_s: float | None = None
        self._soon_dead = 0
        self._unserved = 0
        self._start_s = 0.0
        self.failure = ""
        """Why it did not get to serve, in its own words; empty: it did, or did not say."""

    @property
    def given_up(self) -> bool:
        return self._unserved >= _MOST_STARTS

    @property
    def waits(self) -> bool:
        return self._process is None and not self.given_up

    @property
    def due_in_s(self) -> float:
        return max(self._start_s - time.monotonic(), 0.0)

    @property
    def waitables(self) -> list[int | Connection]:
        """Ready when there is something to `look` at."""
        messages = [] if self._messages is None else [self._messages]
        return [*messages, *([] if self._process is None else [self._process.sentinel])]

    def start_if_due(self) -> None:
        if self.waits and not self.due_in_s:
            self._messages, sender = self._context.Pipe(duplex=False)
            self._serving_since_s = None
            self._process = self._context.Process(target=_do, args=(self._work, self._number, sender), daemon=True)
            self._process.start()
            sender.close()  # ours; so that its end is seen when the process is gone

    def look(self) -> None:
        """Read its messages, and see whether it has died; OperatorError where it never served."""
        # Before its messages are read: those of a dead one are all there.
        dead = self._process is not None and not self._process.is_alive()
        while self._messages is not None and self._messages.poll():
            self._read(self._messages)
        if self._process is None or not dead:
            return
        status, self._process = self._process.exitcode, None
        died = {"process_number": self._number, "exit_status": status}
        served, now_s = self._serving_since_s, time.monotonic()
        self._unserved = self._unserved + 1 if served is None else 0
        self._soon_dead = 0 if served is not None and now_s - served > _STEADY_S else self._soon_dead + 1
        ended = f"process {self._number} ended with status {status}"
        if not self._served_ever:
            raise OperatorError(self.failure or f"{ended} before it served; see its log above")
        if self.given_up:
            self.failure = self.failure or ended
            logger.error("process given up, it did not get to serve: %s", self.failure, extra=died)
            return
        pause_s = min(_FIRST_PAUSE_S * 2 ** max(self._soon_dead - 1, 0), _LONGEST_PAUSE_S)
        self._start_s = now_s + pause_s
        logger.error("process died, starting another in %g s %s", pause_s, self.failure, extra=died)

    def _read(self, messages: Connection) -> None:
        try:
            self.failure = messages.recv()
        except EOFError:
            messages.close()
            self._messages = None
            return
        if not self.failure:
            self._served_ever = True
            self._serving_since_s = time.monotonic()

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def join(self) -> None:
        if self._process is not None:
            self._process.join(_STOP_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()


def _do(work: Work, number: int, sender: Connection) -> None:
    """In the process: do the work, and send the supervisor "" once it serves, or why it does not."""
    try:
        work(number, lambda: sender.send(""))
    except OperatorError as error:
        with contextlib.suppress(OSError):  # the supervisor is gone
            sender.send(str(error))
        sys.exit(1)
