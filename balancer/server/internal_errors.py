"""Mistakes of ours where requests, outcomes and reports are handled: counted each, told once a second at most."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import Counter

from balancer.seldom import Seldom

logger = logging.getLogger(__name__)


class Mistakes:
    """Takes in what handlers caught: an attacker who finds one must not fill the disk by it as well."""

    def __init__(self, counter: Counter, clock: Callable[[], float]) -> None:
        """`counter` has one label, the handler; `clock` gives seconds."""
        self._counter = counter
        self._seldom = Seldom(clock)
        self._untold = 0

    def caught(self, handler: str, error: Exception) -> None:
        """Count it, and tell it with its traceback where none was told within the last second."""
        self._counter.labels(handler).inc()
        if not self._seldom.due():
            self._untold += 1
            return
        logger.error(
            "%s failed, which is a mistake of the balancer's: please report it",
            handler,
            exc_info=error,
            extra={"not_told_since": self._untold},
        )
        self._untold = 0
