"""Moves traffic from one policy to another in steps, and back where the new one does worse.

A rollout is `running` while draws compare the two, `watched` once the new policy decides all but the windows that
compare it with the old one, and `finished` when it has proven itself; the first two may end in `returned`, for good.

Which of the two decides request k is drawn by a hash of the seed and k, so that both meet the same queues, models and
clients at all times, and the draw is the only reason for any difference, see `evidence`. (A hash of the tenant or of a
key would compare tenants.) A request with a routing key goes to the key's worker under either.

Both arms send to the same workers, so each queues behind the other's requests: a new policy that makes the queues worse
makes them worse for both. The comparison sees what a request gains by its own pick, and not the whole of what the
fleet gains or loses: that is for the windows, which begin when all requests are the new policy's.

A step is held while there is evidence against the new policy, far below what returns it, since after the last step
there are no more draws, and the evidence so far goes on in the windows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from balancer.kernel.settings import RolloutSettings
from balancer.scheduler.canary.evidence import BLOCK_S, SLOW_SHARE, DrawComparison
from balancer.scheduler.canary.switchback import Arm, Finding, Switchback, WindowTicket
from policies.hashing import mix, unit

State = Literal["running", "watched", "finished", "returned"]
_HOLDS = 10.0
"""Evidence from which on no step is taken, and nothing is proven: equal policies seldom have so much."""
_UNENDED_S = 10.0
"""A request without outcome for so long counts as slow, and as late where it had a deadline."""
_KEPT = 2000


class RolloutChange(NamedTuple):
    """A step, one that is held, the beginning of the watch, the end, or the return."""

    at_s: float
    state: State
    share: float
    finding: Finding | None
    """Why it returned."""
    held: Finding | None = None
    """Why the next step is not taken, though its time has come."""


@dataclass(slots=True, eq=False)
class RolloutTicket:
    rollout: Rollout
    new: bool
    share: float
    model: str
    deadline_s: float
    at_s: float
    step: int

    def ended(self, latency_s: float | None, ok: bool, now_s: float) -> None:
        """The request ended; `latency_s`: None where that is no measure of the worker."""
        self.rollout.outcome(self, latency_s, ok, now_s)

    def dropped(self) -> None:
        self.rollout.forget(self)


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    timed: int = 0
    late: int = 0
    errors: int = 0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def shown(self) -> dict[str, float]:
        latencies_s = np.array(self.latencies_s)
        p50_s, p99_s = np.quantile(latencies_s, [0.5, 0.99]) if len(latencies_s) else (math.nan, math.nan)
        return {
            "requests": self.requests,
            "late_share": self.late / self.timed if self.timed else math.nan,
            "error_share": self.errors / self.requests if self.requests else math.nan,
            "p50_s": float(p50_s),
            "p99_s": float(p99_s),
        }


class Rollout:
    def __init__(
        self,
        settings: RolloutSettings,
        seed: int = 0,
        on_change: Callable[[RolloutChange], None] = lambda change: None,
    ) -> None:
        """`on_change` is called at every step, at the end and at the return, and must not raise."""
        self._settings = settings
        self.draws = mix(seed ^ 0x7011007)
        self.on_change = on_change
        self.state: State = "running"
        self.finding: Finding | None = None
        """Why it returned."""
        self._step = -1
        self._step_s = -math.inf
        self._held: Finding | None = None
        self._held_logged = ""
        self._windows: Switchback | None = None
        """Once the rollout is watched."""
        self._quiet_s, self._quiet_pair, self._seen_pair = math.inf, 0, 0
        margins = settings.guard.margins
        self.comparison = DrawComparison(
            {"late": margins.late, "tail": margins.tail * SLOW_SHARE, "errors": margins.errors}
        )
        self._open: dict[int, RolloutTicket] = {}
        self._compared_step = -1
        self._sums = {new: _Sums() for new in (False, True)}

    @property
    def over(self) -> bool:
        return self.state in ("finished", "returned")

    @property
    def share(self) -> float:
        if self.state == "returned" or self._step < 0:
            return 0.0
        return self._settings.shares[self._step]

    def takes(self, number: int, now_s: float) -> bool:
        if self._open:
            self._close_block(now_s)
        if self.state == "running":
            self._advance(now_s)
        if self.state == "watched":
            return self._watch(now_s)
        share = self.share
        return share >= 1 or (share > 0 and unit(mix(self.draws ^ number)) < share)

    @property
    def standing(self) -> tuple[float, float]:
        """The share of the numbers that the new policy decides as things stand, and when `takes` may change that."""
        until_s = self.comparison.block_s + BLOCK_S if self._open else math.inf
        if self.state == "watched" and self._windows is not None:
            arm, over_s = self._windows.standing
            return float(arm is Arm.POLICY), min(until_s, over_s)
        held = self._held is not None and self._obstacle() == self._held.reason
        if self.state == "running" and not held:
            until_s = min(until_s, self._step_s + self._settings.step_s)
        return self.share, until_s

    @property
    def tickets_from_s(self) -> float:
        """When there are tickets, as things stand; of a rollout that is not over."""
        return self._windows.measured_s if self.state == "watched" and self._windows is not None else -math.inf

    def ticket(self, new: bool, model: str, deadline_s: float, now_s: float) -> RolloutTicket | WindowTicket | None:
        """For a request that `takes` was asked about; None: it is not compared."""
        if self.state == "watched" and self._windows is not None:
            return self._windows.ticket(model, deadline_s, now_s)
        if self.state != "running":
            return None
        ticket = RolloutTicket(self, new, self.share, model, deadline_s, now_s, self._step)
        self._open[id(ticket)] = ticket
        return ticket

    def give_up(self, finding: Finding, now_s: float) -> None:
        """Return to the old policy, for good; nothing where the rollout is over."""
        if self.over:
            return
        self.state, self.finding, self._held = "returned", finding, None
        self._open.clear()
        self.on_change(RolloutChange(now_s, "returned", 0.0, finding))

    def resume_finished(self) -> None:
        """A rollout of the same settings has proven the policy before: begin there."""
        self.state, self._step = "finished", len(self._settings.shares) - 1

    def resume_returned(self, finding: Finding) -> None:
        """A rollout of the same settings returned before: begin there."""
        self.state, self.finding = "returned", finding

    def forget(self, ticket: RolloutTicket) -> None:
        self._open.pop(id(ticket), None)

    def outcome(self, ticket: RolloutTicket, latency_s: float | None, ok: bool, now_s: float) -> None:
        if self._open.pop(id(ticket), None) is None:
            return
        # A request of the step before says nothing of this one's share, though it is evidence.
        sums = self._sums[ticket.new] if ticket.step == self._compared_step else _Sums()
        sums.requests += 1
        sums.errors += not ok
        self._bet(ticket, "errors", float(not ok))
        if math.isfinite(ticket.deadline_s):
            late = not ok or (latency_s is not None and latency_s > ticket.deadline_s)
            sums.timed += 1
            sums.late += late
            self._bet(ticket, "late", float(late))
        if ok and latency_s is not None:
            sums.latencies_s.append(latency_s)
            self._bet(ticket, "tail", float(self.comparison.is_slow(ticket.model, latency_s)))
            self.comparison.learn(ticket.model, latency_s)
        self._close_block(now_s)

    def explain(self, now_s: float) -> dict[str, Any]:
        held = self._objection() if self._held is not None else None
        return {
            "state": self.state,
            "share": self.share,
            "step": self._step + 1,
            "steps": len(self._settings.shares),
            "held": held.words if held else "",
            "reason": self.finding.reason if self.finding else "",
            "why": self.finding.words if self.finding else "",
            "old": self._sums[False].shown(),
            "new": self._sums[True].shown(),
            "evidence_against_new": {metric: each.sum for metric, each in self.comparison.evidence.items()},
            "watch": self._watch_shown(now_s),
        }

    def _bet(self, ticket: RolloutTicket, metric: str, cost: float) -> None:
        self.comparison.bet(metric, cost, ticket.new, ticket.share)

    def _close_block(self, now_s: float) -> None:
        if not self.comparison.begins_block(now_s):
            return
        for ticket in list(self._open.values()):
            if now_s - ticket.at_s < _UNENDED_S:
                break
            del self._open[id(ticket)]
            self._bet(ticket, "tail", 1.0)
            if math.isfinite(ticket.deadline_s):
                self._bet(ticket, "late", 1.0)
        worse = self.comparison.close()
        if worse:
            self.give_up(Finding(worse, self._words(worse)), now_s)

    def _words(self, metric: str) -> str:
        old, new = (self._sums[arm].shown() for arm in (False, True))
        if metric == "tail":
            return (
                f"p99 {new['p99_s'] * 1000:.0f} ms of {new['requests']:.0f} requests, of the old policy's "
                f"{old['p99_s'] * 1000:.0f} ms"
            )
        name, what = ("late_share", "were late") if metric == "late" else ("error_share", "failed")
        return f"{new[name]:.1%} of its {new['requests']:.0f} requests {what}, of the old policy's {old[name]:.1%}"

    def _advance(self, now_s: float) -> None:
        settings = self._settings
        if now_s - self._step_s < settings.step_s:
            return
        self._held = None if self._step < 0 else self._objection()
        if self._held is not None:
            if self._held.reason != self._held_logged:
                self._held_logged = self._held.reason
                self.on_change(RolloutChange(now_s, self.state, self.share, None, self._held))
            return
        self._step += 1
        self._step_s, self._held_logged = now_s, ""
        if self.share >= 1:
            self._begin_watch(now_s)
        else:
            self._compared_step = self._step
            self._sums = {new: _Sums() for new in (False, True)}
        self.on_change(RolloutChange(now_s, self.state, self.share, None))

    def _obstacle(self) -> str:
        """Why the next step is not to be taken now, as a code; empty: it may be."""
        if max(each.now for each in self.comparison.evidence.values()) >= _HOLDS:
            return "evidence"
        return "outcomes" if min(sums.requests for sums in self._sums.values()) < self._settings.min_requests else ""

    def _objection(self) -> Finding | None:
        """Likewise, with words."""
        reason = self._obstacle()
        if reason == "evidence":
            against = {name: each.now for name, each in self.comparison.evidence.items()}
            metric, most = max(against.items(), key=lambda found: found[1])
            return Finding(reason, f"evidence {most:.0f} that {self._words(metric)}")
        old, new = (self._sums[arm].requests for arm in (False, True))
        least = self._settings.min_requests
        words = f"{new} requests of the new policy and {old} of the old one ended; min_requests is {least}"
        return Finding(reason, words) if reason else None

    def _begin_watch(self, now_s: float) -> None:
        """Windows take over from the draws; what was decided by a draw and has not ended yet still counts."""
        self.state = "watched"
        self._quiet_s = now_s
        guard = self._settings.guard
        self._windows = Switchback(guard, self.draws, "the old policy", self.comparison.evidence, stretches=True)

    def _watch(self, now_s: float) -> bool:
        """Whether the new policy decides now, in or out of a window."""
        windows = self._windows
        assert windows is not None  # since it is watched
        new = windows.arm(now_s) is Arm.POLICY
        if windows.pairs == self._seen_pair:
            return new
        self._seen_pair = windows.pairs
        if windows.finding is not None:
            self.give_up(windows.finding, now_s)
            return False
        if max(each.now for each in self.comparison.evidence.values()) >= _HOLDS:
            self._quiet_s, self._quiet_pair = now_s, windows.pairs
        elif self._quiet_for(now_s) == (self._settings.watch_s, self._settings.watch_pairs):
            self.state = "finished"
            self._open.clear()
            self.on_change(RolloutChange(now_s, self.state, self.share, None))
            return True
        return new

    def _quiet_for(self, now_s: float) -> tuple[float, int]:
        """Seconds and pairs without evidence, at most as many as are wanted."""
        pairs = self._windows.pairs if self._windows is not None else 0
        wanted = self._settings
        return min(now_s - self._quiet_s, wanted.watch_s), min(pairs - self._quiet_pair, wanted.watch_pairs)

    def _watch_shown(self, now_s: float) -> dict[str, float] | None:
        """How far the proof is; None: the new policy is not watched alone now."""
        if self.state != "watched":
            return None
        quiet_s, pairs = self._quiet_for(now_s)
        wanted = self._settings
        return {"quiet_s": quiet_s, "watch_s": wanted.watch_s, "pairs": pairs, "watch_pairs": wanted.watch_pairs}
