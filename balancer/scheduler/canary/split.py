"""Moves a share of a model's requests to another version, and back for good where that does worse.

Which version a request gets is drawn by lot, so that the lot is the only reason for any difference: of its key where it
has one, so that a key stays with a version, else of its place in the order of requests. Each outcome with a cost c in
[0, 1] is then a bet on the lot, as in a rollout of a policy:

    x = (z - share) * (c - margin * z - usual c) / 2,   z: 1 with the new version, else 0

fair where both do the same (`balancer.core.trials.evidence`). A key's lot is drawn once, so of each key only the first
outcome is a bet. The outcomes of a second are one observation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from balancer.core.settings import Margins, SplitSettings
from balancer.core.trials.evidence import Evidence
from policies.base import Request
from policies.hashing import key_of, mix, unit

_BLOCK_S = 1.0
_FALSE_ALARM_BLOCKS = 100_000.0
"""Mean number of seconds, at least, from one false alarm to the next: 28 hours."""
_GAIN = 0.02
_SLOW_SHARE = 0.1
_MOST_KEYS = 100_000
"""Whose first outcome was a bet; requests of further keys count for nothing."""
_MARGINS = Margins()
METRICS = {"errors": _MARGINS.errors, "slow": _MARGINS.tail * _SLOW_SHARE}
"""What is compared, and by how much the new version may do worse."""


@dataclass(frozen=True, slots=True, eq=False)
class Lot:
    """Drawn for one request."""

    split: Split
    """Whose outcome the request's is."""
    new: bool
    bets: bool
    """Whether its outcome is one."""

    @property
    def version(self) -> str:
        """That the request gets."""
        return self.split.settings.new if self.new else self.split.settings.old


@dataclass(slots=True)
class Arm:
    """What became of a version's requests."""

    requests: int = 0
    errors: int = 0
    slow: int = 0


@dataclass(slots=True)
class Split:
    """Of one model."""

    settings: SplitSettings
    seed: int = 0
    """Of the lots."""
    model: str = ""
    returned: str = ""
    """Why all goes to the old version, for good; empty: it does not."""
    arms: dict[bool, Arm] = field(default_factory=lambda: {new: Arm() for new in (False, True)})
    _evidence: dict[str, Evidence] = field(init=False)
    _usual: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, 0.0))
    _slow_s: float = math.inf
    """That one request in ten exceeds."""
    _block_s: float = -math.inf
    _number: int = 0
    _keys: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._evidence = {metric: Evidence(len(METRICS) * _FALSE_ALARM_BLOCKS) for metric in METRICS}

    @property
    def share(self) -> float:
        """Of the requests that get the new version."""
        return 0.0 if self.returned else self.settings.share

    def draw(self, key: int | None) -> Lot:
        """For a request; `key` keeps requests together."""
        self._number += 1
        new = unit(mix(self.seed ^ mix(self._number if key is None else key))) < self.share
        return self.drawn(key, new)

    def drawn(self, key: int | None, new: bool) -> Lot:
        """The same, where the lot was drawn elsewhere."""
        bets = 0 < self.share < 1 and (key is None or (key not in self._keys and len(self._keys) < _MOST_KEYS))
        if bets and key is not None:
            self._keys.add(key)
        return Lot(self, new, bets)

    def ended(self, lot: Lot, latency_s: float, good: bool, now_s: float) -> None:
        """A worker answered, or failed; `latency_s`: NaN where it is no measure."""
        slow = good and latency_s > self._slow_s
        arm = self.arms[lot.new]
        arm.requests += 1
        arm.errors += not good
        arm.slow += slow
        if lot.bets and not self.returned:
            self._bet(lot, "errors", float(not good))
            if good and not math.isnan(latency_s):
                self._bet(lot, "slow", float(slow))
        if good and not math.isnan(latency_s):
            self._learn(latency_s)
        if now_s - self._block_s >= _BLOCK_S:
            self._block_s = now_s
            self._close()

    def _bet(self, lot: Lot, metric: str, cost: float) -> None:
        usual, share = self._usual[metric], self.settings.share
        z = float(lot.new)
        self._evidence[metric].bet((z - share) * (cost - METRICS[metric] * z - usual) / 2)
        self._usual[metric] = usual + _GAIN * (cost - usual)

    def _learn(self, latency_s: float) -> None:
        """Move up where it is exceeded too often, else down (stochastic approximation)."""
        slow_s = self._slow_s if math.isfinite(self._slow_s) else 2 * latency_s
        self._slow_s = slow_s * math.exp(_GAIN * (float(latency_s > slow_s) - _SLOW_SHARE) / _SLOW_SHARE / 2)

    def _close(self) -> None:
        worse = [metric for metric, evidence in self._evidence.items() if evidence.close()]
        if worse and not self.returned:
            old, new = (getattr(self.arms[arm], worse[0]) / max(1, self.arms[arm].requests) for arm in (False, True))
            what = "failed" if worse[0] == "errors" else "were slow"
            self.returned = (
                f"{new:.1%} of {self.arms[True].requests} requests of version {self.settings.new} {what}, "
                f"{old:.1%} of version {self.settings.old}"
            )


class Splits:
    """Those of all models that have one."""

    def __init__(self) -> None:
        self.returned: Callable[[Split], None] = lambda split: None
        """Is told of a split that returned."""
        self.of: dict[str, Split] = {}
        """By model."""
        self.left: Counter[tuple[str, str]] = Counter()
        """Requests that got no version, though their model is split, by model and reason."""

    def configure(self, models: Mapping[str, SplitSettings]) -> None:
        """From now on; a split whose settings stay keeps what it knows."""
        before, self.of = self.of, {}
        for model, settings in models.items():
            known = before.get(model)
            same = known is not None and known.settings == settings
            self.of[model] = known if known is not None and same else Split(settings, key_of(model), model)

    def draw(self, request: Request, why_not: str = "", key: int | None = None) -> Lot | None:
        """For a request; None: it names a version, or its model is not split.

        Args:
            request: As it came.
            why_not: Why nobody can write a version into it, which is counted; empty: somebody can.
            key: Stands in for the request's, where that has none.
        """
        split = self.of.get(request.model)
        if split is None or request.version:
            return None
        if why_not:
            self.left[request.model, why_not] += 1
            return None
        key = key if request.key is None else int(request.key)
        return split.draw(key)

    def ended(self, lot: Lot, latency_s: float, good: bool, now_s: float) -> None:
        """As `Split.ended`, for the split that the lot is of."""
        before = lot.split.returned
        lot.split.ended(lot, latency_s, good, now_s)
        if lot.split.returned and not before:
            self.returned(lot.split)
