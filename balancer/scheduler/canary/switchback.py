"""Compares a policy with a baseline in pairs of short windows: how late, how slow, how many errors.

Now and then come two windows of equal length, one of the policy and one of the baseline, in random order (a
hash of the seed and the pair's number). The first part of each is left out, since its requests meet the queues of
before. If both policies do the same, then the difference between the two windows is as likely to be d as -d, whatever
the traffic does: bursts, daily rhythm and dependence between requests hit either order alike. The bet on it is

    x = tanh((d - margin) / scale),   scale: root mean square of the differences so far

which is fair for a symmetric d, and less than fair where the policy does better or is worse by less than the margin.
On switchbacks: Bojinov, Simchi-Levi, Zhao, "Design and analysis of switchback experiments", Management Science 2023.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.evidence import Evidence
from policies.hashing import mix, unit

_TAIL = 0.2
"""The slowest fifth of a window's requests; of the few in a window, a p99 would be the maximum."""
_USUAL_GAIN = 0.05
_SCALE_KEEP = 0.9
_SHOWN_PAIRS = 20
_FIRST, _SECOND, _BETWEEN = range(3)
"""Phases: the two windows of a pair, and the time until the next pair."""
_SUSPICION = 8.0
"""Evidence from which on pairs come four times as often."""
_LEAST_REQUESTS = 3
"""Of a window, to tell a tail from."""
_LONGEST_STRETCH = 64.0
"""Times `window_s`: 16 s by default, enough at one request in two seconds."""
METRICS = ("late", "tail", "errors")
_FLOORS = {"late": 0.1, "tail": 0.2, "errors": 0.05}
"""Least scales: smaller differences than these are small evidence even where they are all there is."""


class Arm(Enum):
    POLICY = "policy"
    BASELINE = "baseline"


class Finding(NamedTuple):
    reason: str
    """A code: a label of metrics."""
    words: str


class Usual:
    """The usual latency of each model, so that windows with other models can be compared."""

    def __init__(self) -> None:
        self._log: dict[str, float] = {}

    def relative(self, model: str, latency_s: float) -> float:
        """Logarithm of the latency over the model's usual one."""
        value = math.log(max(latency_s, 1e-6))
        return value - self._log.get(model, value)

    def learn(self, model: str, latency_s: float) -> None:
        usual = self._log.get(model)
        value = math.log(max(latency_s, 1e-6))
        self._log[model] = value if usual is None else usual + _USUAL_GAIN * (value - usual)


@dataclass(slots=True, eq=False)
class _Window:
    usual: Usual
    requests: int = 0
    answered: int = 0
    errors: int = 0
    timed: int = 0
    late: int = 0
    relative: list[float] = field(default_factory=list)
    open: dict[int, WindowTicket] = field(default_factory=dict)

    def close(self, now_s: float) -> None:
        """What has not ended by now was at least so slow."""
        for ticket in list(self.open.values()):
            age_s = now_s - ticket.at_s
            self.relative.append(self.usual.relative(ticket.model, age_s))
            if age_s > ticket.deadline_s:
                self.timed += 1
                self.late += 1
        self.open.clear()

    def value(self, metric: str) -> float:
        """NaN where there is nothing to tell it from."""
        if metric == "late":
            return self.late / self.timed if self.timed else math.nan
        if metric == "errors":
            return self.errors / self.answered if self.answered else math.nan
        if len(self.relative) < _LEAST_REQUESTS:
            return math.nan
        slowest = sorted(self.relative)[-math.ceil(_TAIL * len(self.relative)) :]
        return sum(slowest) / len(slowest)


@dataclass(slots=True, eq=False)
class WindowTicket:
    window: _Window
    model: str
    deadline_s: float
    at_s: float

    def ended(self, latency_s: float | None, ok: bool, now_s: float) -> None:
        """The request ended; `latency_s`: None where that is no measure of the worker."""
        del now_s
        window = self.window
        if window.open.pop(id(self), None) is None:
            return
        window.answered += 1
        window.errors += not ok
        if math.isfinite(self.deadline_s):
            window.timed += 1
            window.late += not ok or (latency_s is not None and latency_s > self.deadline_s)
        if ok and latency_s is not None:
            window.relative.append(window.usual.relative(self.model, latency_s))
            window.usual.learn(self.model, latency_s)

    def dropped(self) -> None:
        self.window.open.pop(id(self), None)


class Switchback:
    def __init__(
        self,
        settings: GuardSettings,
        seed: int = 0,
        against: str = "the baseline",
        evidence: dict[str, Evidence] | None = None,
        stretches: bool = False,
    ) -> None:
        """`against` names the other arm, for people; `evidence` is what there is already, to go on from, by
        metric. One that `stretches` takes longer and fewer windows where there are too few requests in one.
        """
        self._settings = settings
        self._against = against
        self._stretches, self._stretch = stretches, 1.0
        self.pairs = 0
        """That could be compared."""
        self._seed = mix(seed ^ 0x5717C4BAC4)
        self._pair = 0
        self._usual = Usual()
        margins = settings.margins
        self._margins = {"late": margins.late, "tail": math.log1p(margins.tail), "errors": margins.errors}
        # Three are watched, so each must be three times as sure: then their mean has reached the limit.
        limit = len(METRICS) * settings.false_alarm_pairs
        self._evidence = evidence or {metric: Evidence(limit) for metric in METRICS}
        for each in self._evidence.values():
            each.limit = limit
        self._squares = {metric: _FLOORS[metric] ** 2 for metric in METRICS}
        self._shown: dict[str, deque[tuple[float, float]]] = {metric: deque(maxlen=_SHOWN_PAIRS) for metric in METRICS}
        self._on = settings.window_s > 0
        self._until_s = -math.inf if self._on else math.inf
        self._phase = _BETWEEN
        self._windows: dict[Arm, _Window] = {}
        self._order = (Arm.POLICY, Arm.BASELINE)
        self._arm = Arm.POLICY
        self.measured_s = math.inf
        self.finding: Finding | None = None
        """Why the policy is worse than the baseline; None: it is not known to be."""

    @property
    def evidence(self) -> dict[str, float]:
        """By metric; the limit is three times `false_alarm_pairs`."""
        return {metric: each.sum for metric, each in self._evidence.items()}

    @property
    def standing(self) -> tuple[Arm, float]:
        """Who decides as things stand, and when `arm` may say otherwise."""
        return self._arm, self._until_s

    def arm(self, now_s: float) -> Arm:
        if now_s >= self._until_s:
            self._advance(now_s)
        return self._arm

    def stop(self, now_s: float) -> None:
        """End the pair under way, uncounted, and begin anew some time later."""
        self._windows = {}
        self._wait(now_s)

    def reset(self, now_s: float) -> None:
        for metric in METRICS:
            self._evidence[metric].reset()
            self._shown[metric].clear()
        self.finding = None
        self.stop(now_s)

    def ticket(self, model: str, deadline_s: float, now_s: float) -> WindowTicket | None:
        """For a request decided now by the arm that `arm` returned; None: not in the measured part of a window."""
        if now_s < self.measured_s:
            return None
        window = self._windows[self._arm]
        ticket = WindowTicket(window, model, deadline_s, now_s)
        window.open[id(ticket)] = ticket
        window.requests += 1
        return ticket

    def _advance(self, now_s: float) -> None:
        """Go on to the next phase: the two windows, then waiting for their outcomes and for the next pair."""
        late_by_s = now_s - self._until_s
        if self._phase == _BETWEEN:
            if self._windows:
                self._compare(now_s)
            self._pair += 1
            first = self._draw(0) < 0.5
            self._order = (Arm.POLICY, Arm.BASELINE) if first else (Arm.BASELINE, Arm.POLICY)
            if self._until_s == -math.inf:  # nothing was measured yet, not even when requests come
                self._wait(now_s)
                return
            self._windows = {arm: _Window(self._usual) for arm in Arm}
            self._begin(_FIRST, now_s)
        elif late_by_s > self._settings.settle_s * self._stretch:
            # Too few requests to tell when one window ends and the other begins.
            self._lengthen()
            self.stop(now_s)
        elif self._phase == _FIRST:
            self._begin(_SECOND, now_s)
        else:
            self._wait(now_s)

    def _begin(self, phase: int, now_s: float) -> None:
        self._phase = phase
        self._arm = self._order[phase]
        self._until_s = now_s + self._settings.window_s * self._stretch
        self.measured_s = now_s + self._settings.settle_s

    def _wait(self, now_s: float) -> None:
        settings = self._settings
        gap_s = max(settings.window_every_s - 2 * settings.window_s, settings.window_s) * self._stretch
        if max(self.evidence.values()) >= _SUSPICION:
            gap_s /= 4
        self._phase, self._arm, self.measured_s = _BETWEEN, Arm.POLICY, math.inf
        # By chance, so that it does not keep time with what is periodic in the load.
        self._until_s = now_s + gap_s * (0.5 + self._draw(1)) if self._on else math.inf

    def _draw(self, kind: int) -> float:
        return unit(mix(mix(self._seed ^ self._pair) ^ kind))

    def _lengthen(self) -> None:
        if self._stretches:
            self._stretch = min(2 * self._stretch, _LONGEST_STRETCH)

    def _compare(self, now_s: float) -> None:
        for window in self._windows.values():
            window.close(now_s)
        if min(window.requests for window in self._windows.values()) < _LEAST_REQUESTS:
            self._lengthen()
        compared = False
        for metric in METRICS:
            policy, baseline = (self._windows[arm].value(metric) for arm in Arm)
            difference = policy - baseline
            if math.isnan(difference):
                continue
            compared = True
            self._shown[metric].append((policy, baseline))
            scale = math.sqrt(max(self._squares[metric], _FLOORS[metric] ** 2))
            evidence = self._evidence[metric]
            evidence.bet(math.tanh((difference - self._margins[metric]) / scale))
            if evidence.close():
                self.finding = Finding(metric, self._words(metric))
            self._squares[metric] += (1 - _SCALE_KEEP) * (difference**2 - self._squares[metric])
        self.pairs += compared

    def _words(self, metric: str) -> str:
        policy, baseline = np.mean(self._shown[metric], axis=0)
        count = len(self._shown[metric])
        if metric == "tail":
            return (
                f"its slow requests took {math.exp(policy - baseline):.2f} times as long as {self._against}'s, "
                f"in {count} pairs of windows"
            )
        what = "were late" if metric == "late" else "failed"
        return f"{policy:.1%} of its requests {what}, of {self._against}'s {baseline:.1%}, in {count} pairs of windows"
