"""What is known of attempts lately: circuit breakers, and how long a model's inferences took."""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from balancer.proxy.settings import CONSTANTS

_MOST_MODELS = 1024


@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    opened_s: float | None = None
    """None: closed."""
    probe: int | None = None
    """The number of the request that tries."""


class Breakers:
    """One for each model and worker at which something failed; all others are closed."""

    def __init__(self, failures: int, open_s: float = CONSTANTS.breaker_open_s) -> None:
        """`failures` in a row, by the worker's fault, open a breaker (0: there is none), for `open_s`."""
        self._failures, self._open_s = failures, open_s
        self._of: dict[str, dict[str, _Breaker]] = {}
        self.opened = 0

    def shut(self, model: str, now_s: float) -> frozenset[str]:
        there = self._of.get(model)
        if not there or not self._failures:
            return frozenset()
        return frozenset(name for name, each in there.items() if self._is_shut(each, now_s))

    def sent(self, model: str, worker: str, number: int) -> None:
        """A request went to the worker: where its breaker is open, it is the one that tries."""
        breaker = self._of.get(model, {}).get(worker)
        if breaker is not None and breaker.opened_s is not None and breaker.probe is None:
            breaker.probe = number

    def ended(self, model: str, worker: str, number: int, good: bool | None, now_s: float) -> None:
        """How it ended; None: that says nothing of the worker."""
        there = self._of.get(model, {})
        breaker = there.get(worker)
        if good:
            # An answer to what was sent before the breaker opened is no answer to the one that tries.
            if breaker is not None and (breaker.opened_s is None or breaker.probe == number):
                del there[worker]
                if not there:
                    del self._of[model]
            return
        if breaker is not None and breaker.probe == number:
            breaker.probe = None
            if good is False:
                breaker.opened_s = now_s
            return
        if good is None or not self._failures or (model not in self._of and len(self._of) >= _MOST_MODELS):
            return
        breaker = self._of.setdefault(model, {}).setdefault(worker, _Breaker())
        breaker.failures += 1
        if breaker.opened_s is None and breaker.failures >= self._failures:
            breaker.opened_s = now_s
            self.opened += 1

    def keep(self, workers: frozenset[str]) -> None:
        """Only these are there: what is known of others is forgotten."""
        for model, there in list(self._of.items()):
            left = {name: each for name, each in there.items() if name in workers}
            if left:
                self._of[model] = left
            else:
                del self._of[model]

    def states(self) -> dict[tuple[str, str], str]:
        return {
            (model, worker): "open" if breaker.probe is None else "half_open"
            for model, there in self._of.items()
            for worker, breaker in there.items()
            if breaker.opened_s is not None
        }

    def _is_shut(self, breaker: _Breaker, now_s: float) -> bool:
        if breaker.opened_s is None:
            return False
        return breaker.probe is not None or now_s - breaker.opened_s < self._open_s


_KEPT = 512
_ENOUGH = 50


class AttemptLatencies:
    def __init__(self) -> None:
        self._of: dict[str, tuple[deque[float], list[float]]] = {}

    def took(self, model: str, latency_s: float) -> None:
        if model not in self._of and len(self._of) >= _MOST_MODELS:
            return
        order, ranked = self._of.setdefault(model, (deque(), []))
        order.append(latency_s)
        insort(ranked, latency_s)
        if len(order) > _KEPT:
            del ranked[bisect_left(ranked, order.popleft())]

    def quantile_s(self, model: str, share: float) -> float | None:
        """What that share of them stayed below; None while too few are known."""
        ranked = self._of.get(model, (None, []))[1]
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if len(ranked) >= _ENOUGH else None
