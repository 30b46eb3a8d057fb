"""How many requests execute at a Triton, which it does not say: by Little's law, from the time that they took."""

from collections import deque

_MIN_WINDOW_S = 0.15
_MAX_WINDOW_S = 2.0
_RARE_S = 0.06
"""Between two looks: more than at 20 a second."""
_SERVICE_TIMES = 4.0
"""Service times that the window spans: the counter moves only when a request ends, so a shorter one sees jumps."""


class ExecutingEstimate:
    """Mean number of requests of one model executing over the last 0.15 to 2 s (four service times)."""

    def __init__(self) -> None:
        # (seconds, microseconds of compute, requests), oldest first.
        self._samples: deque[tuple[float, float, float]] = deque()
        self._window_s = _MIN_WINDOW_S

    def observe(self, now_s: float, compute_us: float, succeeded: float, at_most: float) -> float:
        """Take in the counters, and return the estimate.

        Args:
            now_s: When they were read, on any clock that only grows.
            compute_us: Microseconds of compute in all, of every request (a batch of 8 counts 8 times).
            succeeded: Requests that this was the compute of.
            at_most: Requests that can execute at once.
        """
        samples = self._samples
        samples.append((now_s, compute_us, succeeded))
        while len(samples) > 2 and samples[1][0] <= now_s - self._window_s:
            samples.popleft()
        start_s, start_us, start_succeeded = samples[0]
        busy_s = (compute_us - start_us) * 1e-6
        if now_s <= start_s or busy_s <= 0.0:
            return 0.0
        if samples[1][1:] == samples[0][1:] and samples[1][0] - start_s > _RARE_S:
            # Looked at rarely while nothing happened: the window begins in between, where the counters were the same.
            start_s = max(start_s, now_s - self._window_s)
        if succeeded > start_succeeded:
            service_s = busy_s / (succeeded - start_succeeded)
            self._window_s = min(max(_SERVICE_TIMES * service_s, _MIN_WINDOW_S), _MAX_WINDOW_S)
        return min(busy_s / (now_s - start_s), at_most)
