"""How long a model's recent inferences took: what is slow is told by that."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_KEPT = 512
_ENOUGH = 50
_MOST_MODELS = 1024


class AttemptLatencies:
    """The latest of each model."""

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
