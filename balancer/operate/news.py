"""Tells of what guards, rollouts, shadows and config files do, and who comes and goes: in the log, in metrics, and in
the journal that people see.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from balancer.config.watch import ConfigState
from balancer.core.bounds import shown
from balancer.core.trials.guard import Change
from balancer.core.trials.rollout import RolloutChange
from balancer.core.trials.steering import Steering
from balancer.files.yaml_document import ConfigError
from balancer.operate.journal import Journal, Level, some
from balancer.operate.metrics import Metrics

logger = logging.getLogger(__name__)

_MOST_STRANGERS = 1000
_SHADOW_EVERY_S = 60.0


class News:
    """Hears of changes, and looks at the shadow now and then."""

    def __init__(self, metrics: Metrics, journal: Journal) -> None:
        self._metrics = metrics
        self._journal = journal
        self._shadow_s = 0.0
        self._strangers: set[str] = set()
        """Workers that reported and are not listed; each is told of once."""

    def stranger(self, worker: str) -> None:
        """An agent reports on a worker that discovery does not list."""
        if worker in self._strangers or len(self._strangers) >= _MOST_STRANGERS:
            return
        self._strangers.add(worker)
        logger.warning("an agent reports on %r, which discovery does not list: is --worker spelt right?", worker)
        self._journal.add("worker", "warning", f"an agent reports on {shown(worker)}, which discovery does not list")

    def config_applied(self, state: ConfigState) -> None:
        """One line and one count; another line where fields wait for a restart."""
        self._metrics.config_loads.labels("applied").inc()
        extra: dict[str, Any] = {"policy": state.config.policy.name, "config_hash": state.hash}
        logger.info("config applied", extra=extra)
        self._journal.add("config", "info", f"{state.hash} in force: {'; '.join(state.history[-1].changes)}")
        if waiting := state.waiting_for_restart:
            logger.warning("these fields change with a restart only: %s", ", ".join(waiting))
            self._journal.add("config", "warning", f"wait for a restart: {', '.join(waiting)}")

    def config_refused(self, error: ConfigError) -> None:
        """One line and one count."""
        self._metrics.config_loads.labels("refused").inc()
        logger.error("config refused, the last good one stays in force: %s", error)
        self._journal.add("config", "error", f"refused, the last good one stays in force: {error}")

    def workers(self, before: Collection[str], now: Collection[str]) -> None:
        """Discovery lists these."""
        logger.info("workers discovered", extra={"workers": len(now)})
        if came := set(now) - set(before):
            self._journal.add("worker", "info", f"listed: {some(came)}")
        if went := set(before) - set(now):
            self._journal.add("worker", "info", f"no longer listed: {some(went)}")

    def readiness(self, not_ready: str) -> None:
        """Whether picks can be made has changed; empty: they can."""
        logger.info("ready" if not not_ready else "not ready: %s", *([not_ready] if not_ready else []))
        if not_ready:
            self._journal.add("ready", "warning", f"no picks: {not_ready}")
        else:
            self._journal.add("ready", "info", "picks can be made")

    def guard_changed(self, policy: str, change: Change) -> None:
        """One line and one count at each fall, one line at each return."""
        reason, words = change.finding
        extra = {"policy": policy, "reason": reason, "quiet_s": change.quiet_s}
        if change.fell:
            self._metrics.guard_breaches.labels(policy, reason).inc()
            logger.warning("guard: policy out of service, a baseline decides: %s", words, extra=extra)
            self._journal.add("guard", "error", f"{policy} out of service, a baseline decides: {words}")
        else:
            logger.info("guard: policy back in service, no cause seen for the quiet period", extra=extra)
            self._journal.add("guard", "info", f"{policy} back in service")

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        """One line at each step, one that is held, the watch, the end and the return."""
        extra = {"policy": policy, "share": change.share}
        self._note(policy, change)
        if change.finding is not None:
            self._metrics.rollout_returns.labels(policy, change.finding.reason).inc()
            logger.warning(
                "rollout: returned to the old policy, for good: %s",
                change.finding.words,
                extra=extra | {"reason": change.finding.reason},
            )
        elif change.held is not None:
            level = logging.WARNING if change.held.reason == "evidence" else logging.INFO
            extra |= {"reason": change.held.reason}
            logger.log(level, "rollout: step held: %s", change.held.words, extra=extra)
        elif change.state == "watched":
            logger.info("rollout: the new policy decides all, watched against the old one in windows", extra=extra)
        elif change.state == "finished":
            words = "the new policy has proven itself; write it into policy, and remove rollout"
            logger.info("rollout: finished, %s", words, extra=extra)
        else:
            logger.info("rollout: next step", extra=extra)

    def _note(self, policy: str, change: RolloutChange) -> None:
        finding = change.finding or change.held
        words = f"{policy} at {change.share:.0%} of the requests, {change.state}"
        if change.held is not None:
            words += ", step held"
        level: Level = "error" if change.finding is not None else "info"
        self._journal.add("rollout", level, f"{words}: {finding.words}" if finding is not None else words)

    def tick(self, steering: Steering | None, now_s: float) -> None:
        """One line about the shadow now and then."""
        if steering is None or steering.shadow is None or now_s - self._shadow_s < _SHADOW_EVERY_S:
            return
        self._shadow_s = now_s
        shadow = steering.shadow.explain()
        if shadow["decisions"]:
            extra = {name: shadow[name] for name in ("policy", "decisions", "agreement", "distance", "failures")}
            logger.info("shadow", extra=extra | {"mean_decision_s": shadow["mean_decision_s"]})
