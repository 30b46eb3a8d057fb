"""How many replicas a HorizontalPodAutoscaler wants, as Kubernetes documents it and its controller computes it.

https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details, for metrics of type
External with a target of type Value, and with `behavior`. The controller: `pkg/controller/podautoscaler` of Kubernetes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TOLERANCE = 0.1
"""A metric that is so near to its target changes nothing: --horizontal-pod-autoscaler-tolerance."""
SYNC_S = 15.0
"""From one look to the next: --horizontal-pod-autoscaler-sync-period."""


class Pace(NamedTuple):
    kind: Literal["Pods", "Percent"]
    value: float
    period_s: float


@dataclass(frozen=True, slots=True)
class Direction:
    window_s: float
    """`stabilizationWindowSeconds`."""
    paces: tuple[Pace, ...]
    """The one that allows most counts."""


@dataclass(frozen=True, slots=True)
class Rules:
    least: int
    most: int
    up: Direction = Direction(0.0, (Pace("Percent", 100, 15), Pace("Pods", 4, 15)))
    down: Direction = Direction(300.0, (Pace("Percent", 100, 15),))
    """Kubernetes' defaults."""


def direction(given: Mapping[str, Any], default: Direction) -> Direction:
    """Of `behavior.scaleUp` or `scaleDown` as an object of Kubernetes has it; what is left out is as by default.

    Raises:
        ValueError: it says something that is not followed here.
    """
    if unknown := set(given) - {"stabilizationWindowSeconds", "policies"}:
        raise ValueError(f"behavior has {sorted(unknown)}, which this does not follow: take it out, or add it here")
    paces = tuple(Pace(each["type"], each["value"], each["periodSeconds"]) for each in given.get("policies", ()))
    return Direction(given.get("stabilizationWindowSeconds", default.window_s), paces or default.paces)


@dataclass
class Autoscaler:
    rules: Rules
    _wanted: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def look(self, now_s: float, replicas: int, ready: int, ratios: Sequence[float | None]) -> int:
        """How many replicas there shall be, where `replicas` are asked for so far and `ready` are ready.

        `ratios`: of each metric to its target; None: there is none now.
        """
        desired = [_desired(replicas, ready, ratio) for ratio in ratios if ratio is not None]
        if not desired:
            return replicas
        wanted = max(desired)
        if None in ratios and wanted < replicas:
            # What is not known might have asked for more.
            return replicas
        wanted = min(max(self._stable(now_s, replicas, wanted), self.rules.least), self.rules.most)
        wanted = self._paced(now_s, replicas, wanted)
        if wanted != replicas:
            self._changes.append((now_s, wanted - replicas))
        return wanted

    def _stable(self, now_s: float, replicas: int, wanted: int) -> int:
        """What is wanted, within bounds: no more replicas than the least, and no fewer than the most, that was wanted
        in the window of that direction. Before the first look, those that exist were wanted.
        """
        self._wanted = self._wanted or [(now_s, replicas)]
        up, down = (
            [wanted, *(count for at_s, count in self._wanted if at_s > now_s - each.window_s)]
            for each in (self.rules.up, self.rules.down)
        )
        self._wanted.append((now_s, wanted))
        return min(max(replicas, min(up)), max(down))

    def _paced(self, now_s: float, replicas: int, wanted: int) -> int:
        if wanted > replicas:
            return min(wanted, max(self._limit(now_s, replicas, pace, 1) for pace in self.rules.up.paces))
        if wanted < replicas:
            return max(wanted, min(self._limit(now_s, replicas, pace, -1) for pace in self.rules.down.paces))
        return wanted

    def _limit(self, now_s: float, replicas: int, pace: Pace, sign: int) -> int:
        """How far one of the paces lets it go, from what there was when its period began."""
        within = [change for at_s, change in self._changes if at_s > now_s - pace.period_s]
        began = replicas - sum(within)
        if pace.kind == "Pods":
            return began + sign * round(pace.value)
        share = began * (1 + sign * pace.value / 100)
        return math.ceil(share) if sign > 0 else math.floor(share)


def _desired(replicas: int, ready: int, ratio: float) -> int:
    if abs(ratio - 1) <= TOLERANCE:
        return replicas
    return math.ceil(ratio * ready)
