"""Run a policy under its guard: production's own guard, one for each balancer of each environment.

What the guard does in production (`balancer.core.steering`) is done here for many fleets at once: the policy and the
baseline answer for the whole batch, inputs are looked at where a guard wants that, and outcomes are told when the
balancer hears of them. Decisions take no time in the simulator, so none is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from balancer.core.guard import Change, Guard, Look
from balancer.core.settings import GuardSettings
from balancer.core.switchback import Arm, WindowTicket
from policies.base import BoolArray, FleetView, FloatArray, Policy
from policies.expected_latency import ExpectedLatency
from policies.hashing import mix
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.result import Result, Status
from simulator.spec import FleetSpec

_UNSOUND = "the answer is no distribution over the eligible workers"
NOBODY, BY_POLICY, BY_BASELINE = -1, 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class GuardedResult:
    """What a run tells, and what the guards did in it."""

    result: Result
    decided: npt.NDArray[np.int8]
    """Who decided each request, `(e, k)`: `BY_POLICY`, `BY_BASELINE`; `NOBODY`: its key did, or there was no worker."""
    changes: tuple[tuple[Change, ...], ...]
    """Falls and returns of each environment, in time."""


def run_guarded(
    fleet: FleetSpec | Sequence[FleetSpec],
    arrivals: Sequence[Arrivals],
    policy: Policy,
    *,
    baseline: Policy | None = None,
    settings: GuardSettings | None = None,
    seeds: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> GuardedResult:
    """Route every request of every environment, as `simulator.run.run` does with reports as in production.

    Args:
        fleet: One for all environments, or one for each.
        arrivals: One environment each; all of one length.
        policy: Decides, while its guard lets it.
        baseline: Decides otherwise; `expected_latency` by default.
        settings: The guards'; production's defaults by default.
        seeds: As in `run`; of the guards' windows, too.
        progress: Called now and then with the number of requests decided since the last call.
    """
    fleets = [fleet] * len(arrivals) if isinstance(fleet, FleetSpec) else list(fleet)
    batch = Batch(fleets, arrivals, range(len(arrivals)) if seeds is None else seeds)
    guards = _Guards(
        batch, policy, baseline or ExpectedLatency(), settings or GuardSettings(), seeds or range(len(arrivals))
    )
    waiting = batch.start()
    while waiting:
        if progress is not None:
            progress(waiting)
        waiting = batch.step(batch.draw(guards.probabilities()))
    return GuardedResult(batch.result(), guards.decided, tuple(map(tuple, guards.changes)))


class _Guards:
    """The guards of a batch."""

    def __init__(
        self, batch: Batch, policy: Policy, baseline: Policy, settings: GuardSettings, seeds: Sequence[int]
    ) -> None:
        self._batch, self._policy, self._baseline, self._settings = batch, policy, baseline, settings
        environments, requests = batch.sim.state.status.shape
        self.decided = np.full((environments, requests), NOBODY, np.int8)
        self.changes: list[list[Change]] = [[] for _ in range(environments)]
        self._open: list[list[tuple[int, WindowTicket]]] = [[] for _ in range(environments)]
        self._outcome_s = [fleet.network.outcome_s for fleet in batch.fleets]
        self._guards = [
            [Guard(settings, mix(seed) ^ number, self.changes[e].append) for number in range(fleet.balancers)]
            for e, (fleet, seed) in enumerate(zip(batch.fleets, seeds, strict=True))
        ]

    def probabilities(self) -> FloatArray:
        """Those of the arm of each environment that waits, `(e, n)`."""
        batch = self._batch
        view, now_s = batch.view(), batch.sim.asked.now_s
        own = self._own(view)
        sound = _sound(own, view.eligible)
        asked = [e for e in np.flatnonzero(batch.waiting).tolist() if self._is_for_policy(e)]
        guards = {e: self._guards[e][int(batch.sim.asked.balancer[e])] for e in asked}
        by_baseline = np.zeros(len(batch.waiting), np.bool_)
        due = []
        for e, guard in guards.items():
            at_s = float(now_s[e])
            self._tell_outcomes(e, at_s)
            by_baseline[e] = guard.arm(at_s) is Arm.BASELINE
            due += [e] if guard.check_due(at_s) and (guard.breach is not None or not by_baseline[e]) else []
            if not by_baseline[e] and not sound[e]:
                guard.failed(_UNSOUND, at_s)
                by_baseline[e] = True
        if due:
            self._look(due, guards, view, sound)
        self._open_tickets(guards, by_baseline)
        if not by_baseline.any():
            return own
        return np.where(by_baseline[:, None], batch.probabilities(self._baseline, view), own)

    def _own(self, view: FleetView) -> FloatArray:
        try:
            return self._batch.probabilities(self._policy, view)
        except Exception:  # as in production, where a third party's policy may raise anything
            return np.full(view.eligible.shape, np.nan)

    def _is_for_policy(self, e: int) -> bool:
        key = self._batch.request().key
        return key is None or not self._batch.sticky(self._policy) or not np.asarray(key)[e, 0]

    def _tell_outcomes(self, e: int, now_s: float) -> None:
        """Tell the tickets of an environment what its balancers have heard by now."""
        state, still_open = self._batch.sim.state, []
        for k, ticket in self._open[e]:
            if state.resolved_s[e, k] + self._outcome_s[e] <= now_s:
                ok = bool(state.status[e, k] == Status.OK)
                ticket.ended(float(state.resolved_s[e, k] - state.sent_s[e, k]), ok, now_s)
            else:
                still_open.append((k, ticket))
        self._open[e] = still_open

    def _look(self, due: list[int], guards: dict[int, Guard], view: FleetView, sound: BoolArray) -> None:
        eligible, now_s = view.eligible, self._batch.sim.asked.now_s
        missing = np.count_nonzero((view.report_age_s > self._settings.report_age_s) & eligible, axis=-1)
        shares = missing / np.maximum(np.count_nonzero(eligible, axis=-1), 1)
        outside, why = np.zeros(len(shares)), ""
        try:
            outside = np.broadcast_to(self._policy.out_of_range(self._batch.request(), view), shares.shape)
        except Exception as error:  # as in production, where a third party's policy may raise anything
            why = f"out_of_range: {type(error).__name__}: {error}"
        for e in due:
            failure = why or ("" if sound[e] else _UNSOUND)
            guards[e].looked(Look(float(shares[e]), float(outside[e]), failure), float(now_s[e]))

    def _open_tickets(self, guards: dict[int, Guard], by_baseline: BoolArray) -> None:
        batch, asked = self._batch, self._batch.sim.asked
        deciding, model = batch.deciding, batch.model()
        for e, guard in guards.items():
            k = int(deciding[e])
            self.decided[e, k] = BY_BASELINE if by_baseline[e] else BY_POLICY
            ticket = guard.ticket(str(model[e]), float(asked.deadline_s[e]), float(asked.now_s[e]))
            if ticket is not None:
                self._open[e].append((k, ticket))


def _sound(probabilities: FloatArray, eligible: BoolArray) -> BoolArray:
    """As `balancer.core.asking.ask` has it, `(e,)`."""
    total = probabilities.sum(axis=-1)
    # Comparisons with NaN are false, so NaN is unsound here too.
    sums = (total == 0) | (np.abs(total - 1) < 1e-6)
    positive = (probabilities >= 0).all(axis=-1)
    found: BoolArray = sums & positive & ~((probabilities > 0) & ~eligible).any(axis=-1)
    return found
