"""Tells of what guards, rollouts and shadows do: a line in the log, and metrics."""

from __future__ import annotations

import logging

from balancer.core.trials.guard import Change
from balancer.core.trials.rollout import RolloutChange
from balancer.core.trials.steering import Steering
from balancer.operate.metrics import Metrics

logger = logging.getLogger(__name__)

_SHADOW_EVERY_S = 60.0


class News:
    """Hears of changes, and looks at the shadow now and then."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._shadow_s = 0.0

    def guard_changed(self, policy: str, change: Change) -> None:
        """One line and one count at each fall, one line at each return."""
        reason, words = change.finding
        extra = {"policy": policy, "reason": reason, "quiet_s": change.quiet_s}
        if change.fell:
            self._metrics.guard_breaches.labels(policy, reason).inc()
            logger.warning("guard: policy out of service, a baseline decides: %s", words, extra=extra)
        else:
            logger.info("guard: policy back in service, no cause seen for the quiet period", extra=extra)

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        """One line at each step, one that is held, the watch, the end and the return."""
        extra = {"policy": policy, "share": change.share}
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

    def tick(self, steering: Steering | None, now_s: float) -> None:
        """One line about the shadow now and then."""
        if steering is None or steering.shadow is None or now_s - self._shadow_s < _SHADOW_EVERY_S:
            return
        self._shadow_s = now_s
        shadow = steering.shadow.explain()
        if shadow["decisions"]:
            extra = {name: shadow[name] for name in ("policy", "decisions", "agreement", "distance", "failures")}
            logger.info("shadow", extra=extra | {"mean_decision_s": shadow["mean_decision_s"]})
