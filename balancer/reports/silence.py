"""When a stream that should never be silent is given up."""

import asyncio
import math
from collections.abc import Callable

SILENCE_S = 1.0
"""A stream that carried nothing for so long is given up: a host that lost its power sends no FIN."""


class Silence:
    """A timer for each message would cost more than the message: one a stream looks when the last one was heard."""

    def __init__(self, silence_s: float, given_up: Callable[[], None]) -> None:
        """Watches from now on; `given_up` is called once, after a silence of `silence_s`."""
        self.silence_s, self._given_up = silence_s, given_up
        self.heard_s = asyncio.get_running_loop().time()
        """When the last message was; for whoever hears it to set."""
        self.busy = False
        """While true, what was sent waits for us; for the same to set."""
        self._timer: asyncio.TimerHandle | None = None
        self._watch(math.inf)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self.busy or now_s - due_s > self.silence_s / 4:
            # It is this process that does not read, or stood still; what was sent meanwhile is still to be read.
            self.heard_s = now_s
        if now_s - self.heard_s < self.silence_s:
            due_s = self.heard_s + self.silence_s
            self._timer = loop.call_at(due_s, self._watch, due_s)
        else:
            self._given_up()
