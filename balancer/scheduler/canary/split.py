"""Moves a share of a model's requests to another version, and back for good where that does worse.

Which version a request gets is drawn by chance, so that the draw is the only reason for any difference, as in a
rollout of a policy, see `evidence`: by a hash of its key where it has one, so that a key stays with a version, else
by a hash of its place in the order of requests. A key's version is drawn once, so of each key only the first outcome
is a bet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from balancer.kernel.settings import Margins, SplitSettings
from balancer.scheduler.canary.evidence import SLOW_SHARE, DrawComparison
from policies.base import Request
from policies.hashing import key_of, mix, unit

_MOST_KEYS = 100_000
"""Whose first outcome was a bet; requests of further keys count for nothing."""
_MARGINS = Margins()
METRICS = {"errors": _MARGINS.errors, "slow": _MARGINS.tail * SLOW_SHARE}
"""What is compared, and by how much the new version may do worse."""


@dataclass(frozen=True, slots=True, eq=False)
class VersionDraw:
    split: Split
    new: bool
    bets: bool

    @property
    def version(self) -> str:
        return self.split.settings.new if self.new else self.split.settings.old


@dataclass(slots=True)
class VersionArm:
    requests: int = 0
    errors: int = 0
    slow: int = 0


@dataclass(slots=True)
class Split:
    settings: SplitSettings
    seed: int = 0
    model: str = ""
    returned: str = ""
    """Why all goes to the old version, for good; empty: it does not."""
    arms: dict[bool, VersionArm] = field(default_factory=lambda: {new: VersionArm() for new in (False, True)})
    comparison: DrawComparison = field(default_factory=lambda: DrawComparison(METRICS))
    _number: int = 0
    _keys: set[int] = field(default_factory=set)

    @property
    def share(self) -> float:
        return 0.0 if self.returned else self.settings.share

    def draw(self, key: int | None) -> VersionDraw:
        """For a request; `key` keeps requests together."""
        self._number += 1
        new = unit(mix(self.seed ^ mix(self._number if key is None else key))) < self.share
        return self.drawn(key, new)

    def drawn(self, key: int | None, new: bool) -> VersionDraw:
        """The same, where it was drawn elsewhere."""
        bets = 0 < self.share < 1 and (key is None or (key not in self._keys and len(self._keys) < _MOST_KEYS))
        if bets and key is not None:
            self._keys.add(key)
        return VersionDraw(self, new, bets)

    def ended(self, draw: VersionDraw, latency_s: float, good: bool, now_s: float) -> None:
        """A worker answered, or failed; `latency_s`: NaN where it is no measure."""
        slow, share = good and self.comparison.is_slow(self.model, latency_s), self.settings.share
        arm = self.arms[draw.new]
        arm.requests += 1
        arm.errors += not good
        arm.slow += slow
        if draw.bets and not self.returned:
            self.comparison.bet("errors", float(not good), draw.new, share)
            if good and not math.isnan(latency_s):
                self.comparison.bet("slow", float(slow), draw.new, share)
        if good and not math.isnan(latency_s):
            self.comparison.learn(self.model, latency_s)
        if self.comparison.begins_block(now_s):
            worse = self.comparison.close()
            if worse and not self.returned:
                self._return(worse)

    def _return(self, metric: str) -> None:
        old, new = (getattr(self.arms[arm], metric) / max(1, self.arms[arm].requests) for arm in (False, True))
        what = "failed" if metric == "errors" else "were slow"
        self.returned = (
            f"{new:.1%} of {self.arms[True].requests} requests of version {self.settings.new} {what}, "
            f"{old:.1%} of version {self.settings.old}"
        )


class Splits:
    def __init__(self) -> None:
        self.returned: Callable[[Split], None] = lambda split: None
        self.of: dict[str, Split] = {}
        self.left: Counter[tuple[str, str]] = Counter()
        """Requests that got no version, though their model is split, by model and reason."""

    def configure(self, models: Mapping[str, SplitSettings]) -> None:
        """From now on; a split whose settings stay keeps what it knows."""
        before, self.of = self.of, {}
        for model, settings in models.items():
            known = before.get(model)
            same = known is not None and known.settings == settings
            self.of[model] = known if known is not None and same else Split(settings, key_of(model), model)

    def draw(self, request: Request, why_not: str = "", key: int | None = None) -> VersionDraw | None:
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

    def ended(self, draw: VersionDraw, latency_s: float, good: bool, now_s: float) -> None:
        before = draw.split.returned
        draw.split.ended(draw, latency_s, good, now_s)
        if draw.split.returned and not before:
            self.returned(draw.split)
