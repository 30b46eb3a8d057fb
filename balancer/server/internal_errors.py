"""Internal errors where requests, outcomes and reports are handled: each is counted, few are logged."""

import logging
from collections.abc import Callable

from balancer.log_throttle import LogThrottle
from balancer.server.metrics.series import Counters

logger = logging.getLogger(__name__)


class InternalErrors:
    """Takes in what handlers caught: an attacker who finds one must not fill the disk by it as well."""

    def __init__(self, counter: Counters, clock: Callable[[], float]) -> None:
        """`counter` has one label, the handler; `clock` gives seconds."""
        self._counter = counter
        self._throttle = LogThrottle(clock)
        self._not_logged = 0

    def caught(self, handler: str, error: Exception) -> None:
        """Count it, and log it with its traceback where none was logged within the last second."""
        self._counter.labels(handler).inc()
        if not self._throttle.due():
            self._not_logged += 1
            return
        logger.error(
            "%s failed, which is a mistake of the balancer's: please report it",
            handler,
            exc_info=error,
            extra={"not_logged_since": self._not_logged},
        )
        self._not_logged = 0
