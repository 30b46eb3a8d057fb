"""Mistakes of ours where requests, outcomes and reports are handled: counted each, told once a second at most."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import Counter

logger = logging.getLogger(__name__)

_EVERY_S = 1.0


class Mistakes:
    """Takes in what handlers caught: an attacker who finds one must not fill the disk by it as well."""

    def __init__(self, counter: Counter, clock: Callable[[], float]) -> None:
        """`counter` has one label, the handler; `clock` gives seconds."""
        self._counter = counter
        self._clock = clock
        self._told_s = float("-inf")
        self._untold = 0

    def caught(self, handler: str, error: Exception) -> None:
        """Count it, and tell it with its traceback where none was told within the last second."""
        self._counter.labels(handler).inc()
        now_s = self._clock()
        if now_s - self._told_s < _EVERY_S:
            self._untold += 1
            return
        logger.error(
            "%s failed, which is a mistake of the balancer's: please report it",
            handler,
            exc_info=error,
            extra={"not_told_since": self._untold},
        )
        self._told_s, self._untold = now_s, 0
