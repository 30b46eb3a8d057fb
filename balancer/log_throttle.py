"""How often a log tells of what strangers can bring about as often as they like: once a second, or less often."""

import math
from collections.abc import Callable

_EVERY_S = 1.0


class LogThrottle:
    def __init__(self, clock: Callable[[], float], every_s: float = _EVERY_S) -> None:
        self._clock, self._every_s = clock, every_s
        self._logged_s: dict[str, float] = {}

    def due(self, kind: str = "") -> bool:
        """Whether none of the kind was due within the last period; then one is now. Kinds come from code, never from
        input.
        """
        now_s = self._clock()
        if now_s - self._logged_s.get(kind, -math.inf) < self._every_s:
            return False
        self._logged_s[kind] = now_s
        return True
