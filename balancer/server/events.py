"""Reports what happens in the fleet and to the config: in the log, in metrics, and in the event log that people see.

Others tell it of what they do. What nobody announces it looks for once a second: workers that fall silent, requests
that are refused, and policies that give no valid answer.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from balancer.bounds import shown
from balancer.config.watch import ConfigState
from balancer.files.yaml_document import ConfigError
from balancer.log_throttle import LogThrottle
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.guard import PolicyChange
from balancer.scheduler.canary.rollout import RolloutChange
from balancer.scheduler.canary.selector import CanaryListener
from balancer.scheduler.snapshot import silent
from balancer.server.metrics import Metrics

logger = logging.getLogger(__name__)

Kind = Literal["config", "worker", "guard", "rollout", "refused", "policy", "ready"]
Level = Literal["info", "warning", "error"]

MOST_EVENTS = 100
_MOST_CHARACTERS = 400
_MOST_NAMES = 5
_SAME_S = 60.0
"""What repeats within that time is one event, counted on."""
_LOOKED_AT = 10


@dataclass(slots=True)
class Event:
    at_s: float
    last_s: float
    count: int
    kind: Kind
    level: Level
    words: str


class EventLog:
    def __init__(self, unix_clock: Callable[[], float] = time.time) -> None:
        self._unix_clock = unix_clock
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def add(self, kind: Kind, level: Level, words: str, count: int = 1) -> None:
        now_s = self._unix_clock()
        words = words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]}..."
        for event in list(self._events)[-_LOOKED_AT:]:
            if (event.kind, event.words) == (kind, words) and now_s - event.last_s <= _SAME_S:
                event.last_s, event.count = now_s, event.count + count
                return
        self._events.append(Event(now_s, now_s, count, kind, level, words))

    def newest_first(self) -> list[Event]:
        return sorted(self._events, key=lambda event: -event.last_s)


def some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = len(listed) - _MOST_NAMES
    return ", ".join(listed[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


_MOST_UNLISTED = 1000
_LOOK_EVERY_S = 1.0
_SHADOW_EVERY_S = 60.0
_POLICY_EVERY_S = 10.0


class EventReporter(CanaryListener):
    """Says in log, metrics and event log what happens to canary, config and workers."""

    def __init__(self, router: AnyRouter, metrics: Metrics, events: EventLog, clock: Callable[[], float]) -> None:
        self._router, self._metrics, self._events = router, metrics, events
        self._looked_s = self._shadow_s = 0.0
        self._unlisted: set[str] = set()
        """Workers that reported and are not listed; each is reported once."""
        self._silent: set[str] = set()
        self._refused: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._logged_failures: dict[str, int] = {}
        self._throttle = LogThrottle(clock, _POLICY_EVERY_S)

    def unlisted(self, worker: str) -> None:
        if worker in self._unlisted or len(self._unlisted) >= _MOST_UNLISTED:
            return
        self._unlisted.add(worker)
        logger.warning("an agent reports on %r, which discovery does not list: is --worker spelt right?", worker)
        self._events.add("worker", "warning", f"an agent reports on {shown(worker)}, which discovery does not list")

    def config_applied(self, state: ConfigState) -> None:
        """Another config is in force; fields of it may wait for a restart."""
        self._metrics.config_loads.labels("applied").inc()
        extra: dict[str, Any] = {"policy": state.config.policy.name, "config_hash": state.hash}
        logger.info("config applied", extra=extra)
        self._events.add("config", "info", f"{state.hash} in force: {'; '.join(state.history[-1].changes)}")
        if waiting := state.waiting_for_restart:
            logger.warning("these fields change with a restart only: %s", ", ".join(waiting))
            self._events.add("config", "warning", f"wait for a restart: {', '.join(waiting)}")

    def config_refused(self, error: ConfigError) -> None:
        self._metrics.config_loads.labels("refused").inc()
        logger.error("config refused, the last good one stays in force: %s", error)
        self._events.add("config", "error", f"refused, the last good one stays in force: {error}")

    def workers(self, before: Collection[str], now: Collection[str]) -> None:
        logger.info("workers discovered", extra={"workers": len(now)})
        if came := set(now) - set(before):
            self._events.add("worker", "info", f"listed: {some(came)}")
        if went := set(before) - set(now):
            self._events.add("worker", "info", f"no longer listed: {some(went)}")

    def readiness(self, not_ready: str) -> None:
        """Whether picks can be made has changed; empty: they can."""
        if not_ready:
            logger.info("not ready: %s", not_ready)
            self._events.add("ready", "warning", f"no picks: {not_ready}")
        else:
            logger.info("ready")
            self._events.add("ready", "info", "picks can be made")

    def guard_changed(self, policy: str, change: PolicyChange) -> None:
        reason, words = change.finding
        extra = {"policy": policy, "reason": reason, "quiet_s": change.quiet_s}
        if change.fell:
            self._metrics.guard_breaches.labels(policy, reason).inc()
            logger.warning("guard: policy out of service, a baseline decides: %s", words, extra=extra)
            self._events.add("guard", "error", f"{policy} out of service, a baseline decides: {words}")
        else:
            logger.info("guard: policy back in service, no cause seen for the quiet period", extra=extra)
            self._events.add("guard", "info", f"{policy} back in service")

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        extra = {"policy": policy, "share": change.share}
        event = f"{policy} at {change.share:.0%} of the requests, {change.state}"
        if change.finding is not None:
            reason, words = change.finding
            self._metrics.rollout_returns.labels(policy, reason).inc()
            extra |= {"reason": reason}
            logger.warning("rollout: returned to the old policy, for good: %s", words, extra=extra)
            self._events.add("rollout", "error", f"{event}: {words}")
            return
        if change.held is not None:
            reason, words = change.held
            level = logging.WARNING if reason == "evidence" else logging.INFO
            logger.log(level, "rollout: step held: %s", words, extra=extra | {"reason": reason})
            event += f", step held: {words}"
        elif change.state == "watched":
            logger.info("rollout: the new policy decides all, watched against the old one in windows", extra=extra)
        elif change.state == "finished":
            words = "the new policy has proven itself; write it into policy, and remove rollout"
            logger.info("rollout: finished, %s", words, extra=extra)
        else:
            logger.info("rollout: next step", extra=extra)
        self._events.add("rollout", "info", event)

    def tick(self, now_s: float) -> None:
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._look_for_silence(now_s)
        refused = self._metrics.refusals.totals()
        for reason, count in refused.items():
            if more := int(count - self._refused.get(reason, 0)):
                self._events.add("refused", "warning", f"requests refused: {reason}", more)
        self._refused = refused
        self._look_at_policies()
        if now_s - self._shadow_s >= _SHADOW_EVERY_S:
            self._look_at_shadow(now_s)

    def _look_for_silence(self, now_s: float) -> None:
        fleet = self._router.fleet
        now_silent = {fleet.names[row] for row in np.flatnonzero(silent(fleet, now_s))}
        if fell_silent := now_silent - self._silent:
            words = f"no report for more than {self._router.settings.stale_after_s:g} s: {some(fell_silent)}"
            self._events.add("worker", "warning", words)
        if report_again := (self._silent - now_silent) & fleet.index.keys():
            self._events.add("worker", "info", f"reports again: {some(report_again)}")
        self._silent = now_silent

    def _look_at_policies(self) -> None:
        failures = dict(self._router.failures)
        for policy, count in failures.items():
            words, instead = self._router.failed[policy]
            text = f"{policy} gave no valid answer, so {instead}: {words}"
            if more := count - self._failures.get(policy, 0):
                self._events.add("policy", "error", text, more)
            more = count - self._logged_failures.get(policy, 0)
            if more and self._throttle.due(policy):
                self._logged_failures[policy] = count
                logger.error("policy %s", text, extra={"policy": policy, "failures": more})
        self._failures = failures

    def _look_at_shadow(self, now_s: float) -> None:
        selector = self._router.selector
        if selector is None or selector.shadow is None:
            return
        self._shadow_s = now_s
        shadow = selector.shadow.explain()
        if shadow["decisions"]:
            names = ("policy", "decisions", "agreement", "distance", "failures", "mean_decision_s")
            logger.info("shadow", extra={name: shadow[name] for name in names})
