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
from collections.abc import Mapping
from dataclasses import dataclass, field

from balancer.core.settings import Margins
from balancer.core.trials.evidence import Evidence
from balancer.proxy.rules.settings import ModelProxy, SplitSettings
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


@dataclass(frozen=True, slots=True)
class Lot:
    """Drawn for one request."""

    new: bool
    bets: bool
    """Whether its outcome is one."""


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
        share = self.share
        new = unit(mix(self.seed ^ mix(self._number if key is None else key))) < share
        bets = 0 < share < 1 and (key is None or (key not in self._keys and len(self._keys) < _MOST_KEYS))
        if bets and key is not None:
            self._keys.add(key)
        return Lot(new, bets)

    def version(self, lot: Lot) -> str:
        """That the request gets."""
        return self.settings.new if lot.new else self.settings.old

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
        self.of: dict[str, Split] = {}
        """By model."""

    def configure(self, models: Mapping[str, ModelProxy]) -> None:
        """From now on; a split whose settings stay keeps what it knows."""
        before, self.of = self.of, {}
        for model, each in models.items():
            if each.split is not None:
                known = before.get(model)
                same = known is not None and known.settings == each.split
                self.of[model] = known if known is not None and same else Split(each.split, key_of(model))
