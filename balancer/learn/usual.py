"""What a fleet is usually like, and when it has become another one; pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from balancer.config.learning import Usual
from balancer.server.page.document import PageDocument

_WELL = ("ready", "listed")
_LOOKS = 10
"""Over which the rate is averaged."""
_GONE_LOOKS = 3
"""In a row without it, and a worker is gone."""
_MORE = 2.0
"""Times the highest rate so far: that is another load."""
_LEAST_PER_S = 1.0
"""A rate below this is not compared."""


@dataclass(frozen=True, slots=True)
class Look:
    models: frozenset[str]
    workers: frozenset[str]
    """Those that are well."""
    unwell: frozenset[str]
    rate_per_s: float
    all_workers: bool
    all_models: bool
    """Whether they are all in it: a page shows so many."""


def look(shown: Sequence[PageDocument]) -> Look:
    """The fleet as the pages of its balancers show it, of one page at least. A worker is well if any balancer can use
    it; the rate is that of all together.
    """
    workers = [worker for each in shown for worker in each.workers]
    well = frozenset(worker.name for worker in workers if worker.state in _WELL)
    return Look(
        models=frozenset(model for each in shown for model in each.models),
        workers=well,
        unwell=frozenset(worker.name for worker in workers) - well,
        # One page that tells no rate must not hide what the others tell.
        rate_per_s=sum(each.recent.rate_per_s for each in shown if 0 <= each.recent.rate_per_s < math.inf),
        all_workers=not any(each.workers_left_out for each in shown),
        all_models=not any(each.models_left_out for each in shown),
    )


@dataclass(slots=True)
class Watched:
    """Looks at a fleet, one a second."""

    usual: Usual = field(default_factory=Usual)
    requests: float = 0.0
    """About so many came."""
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_LOOKS))
    _looks: int = 0
    _last_well: dict[str, int] = field(default_factory=dict)

    def take(self, seen: Look, seconds: float) -> None:
        """Also of what will be usual from now on."""
        self._looks += 1
        self._last_well |= dict.fromkeys(seen.workers, self._looks)
        self._rates.append(seen.rate_per_s)
        self.requests += seen.rate_per_s * seconds
        self._last_well = {name: at for name, at in self._last_well.items() if self._looks - at < _GONE_LOOKS}
        self.usual = Usual(
            models=tuple(sorted({*self.usual.models, *seen.models})),
            workers=tuple(sorted(self._last_well)),
            most_per_s=max(self.usual.most_per_s, self._rate_per_s()),
        )

    def differs(self, seen: Look, usual: Usual) -> str:
        """How the fleet is another one than it usually was, in words; empty: it is not. After `take`."""
        new = sorted(seen.models.difference(usual.models)) if seen.all_models else []
        if new:
            return f"there is a new model: {new[0]}"
        told = (name for name in usual.workers if seen.all_workers or name in seen.unwell)
        if gone := sorted(name for name in told if self._looks - self._last_well.get(name, 0) >= _GONE_LOOKS):
            return f"a worker is gone: {gone[0]}"
        now_per_s = self._rate_per_s()
        if now_per_s > _MORE * max(usual.most_per_s, _LEAST_PER_S):
            return f"{now_per_s:.0f} requests a second come, {usual.most_per_s:.0f} were the most"
        return ""

    def _rate_per_s(self) -> float:
        return sum(self._rates) / _LOOKS
