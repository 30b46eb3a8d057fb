"""The kernel as Python runs it, and what stands in for it where it is compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from balancer.kernel import counting, eligibility, of_worker, picking, reports
from balancer.kernel.answers import is_shipped
from balancer.kernel.block import ordinary_memory
from balancer.kernel.state import MAX_FALLBACKS, FleetState, RequestFeatures
from policies.base import BoolArray, FleetView, FloatArray, Policy, Request
from policies.hashing import mix, unit
from policies.traced import traced
from policies.traced.program import answered

new_tuple = tuple.__new__
"""Makes a named tuple of a plain one in half the time: for what every request needs."""
Lines = Sequence[tuple[float, ...]]
"""Of a report, in the columns of `reports`."""


class RequestView(FleetView, Protocol):
    """The view of one request on one fleet."""

    column: int
    """Of the request's model in the estimators."""
    at_s: float

    @property
    def mask(self) -> BoolArray:
        """`eligible` as it is kept, not to be written to."""


class Picked(NamedTuple):
    """Whom the lot fell on."""

    worker: int
    propensity: float
    fallbacks: tuple[int, ...]
    """Workers to try next, best first."""
    among: int
    """How many could have been picked."""


class LimitsLeft(NamedTuple):
    """Who is left by the limits."""

    left: BoolArray
    """`(n,)`; not written to afterwards. Where the best of them would be late, those who would be."""
    refused: bool


class Kernel:
    """The kernel's functions for one fleet, in plain Python. Rows are workers, in the state's order.

    Policies answer by NumPy then, so that costs are computed for all workers at once.
    """

    compiled = False
    seed = 0
    """Of the lots, mixed."""
    stamp = ""
    """Of the compiled functions, for blocks that hold what they work on."""

    def memory(self, size_bytes: int) -> Any:
        """For a fleet's block, see `block.Memory`."""
        return ordinary_memory(size_bytes)

    def forget(self) -> None:
        """Others have written to the fleet's scratch since the last call: nothing that was left there holds."""

    def keep_fresh(self, x: FleetState, servable: BoolArray, now_s: float) -> BoolArray:
        """Those of the workers, `(n,)`, that are eligible, see `eligibility`."""
        mask = servable.copy()
        eligibility.keep_fresh(x, 0, 0, now_s, mask)
        return mask

    def fresh_until_s(self, x: FleetState, now_s: float) -> float:
        """See `eligibility`."""
        return eligibility.fresh_until_s(x, 0, 0, x.decision.mask.shape[1], now_s)

    def keep_within_limits(self, x: FleetState, request: Request, view: RequestView) -> LimitsLeft:
        """Those in the view's mask that the limits permit, see `picking`."""
        x.decision.mask[0] = view.mask
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            count = picking.keep_within_limits(x, 0, 0, request_of(request, view), view.at_s)
        return LimitsLeft(x.decision.mask[0].copy(), not count)

    def answer(self, x: FleetState, policy: Policy, request: Request, view: RequestView) -> FloatArray | None:
        """The policy's probabilities, `(n,)`, where the kernel has them by itself; else None.

        Programs run in Python as well, for the bits that they have everywhere.
        """
        program = None if is_shipped(policy) else traced(policy).program
        return None if program is None else answered(program, request, view)

    def pick(self, x: FleetState, shares: FloatArray, request: Request, view: RequestView) -> Picked | None:
        """Whom the lot of the request's number falls on, by these shares, `(n,)`; None where all are zero."""
        assert isinstance(request.number, int)  # arrays are for the simulator's views
        listed = shares.tolist()
        row = picking.draw(listed, unit(mix(self.seed ^ request.number)))
        if row < 0:
            return None
        line = np.where(view.eligible, view.pending, np.inf)
        line[row] = np.inf
        fallbacks = [-1] * int(x.decision.settings[0, MAX_FALLBACKS])
        named = picking.name_least(line.tolist(), len(fallbacks), fallbacks)
        share = listed[row] / picking.total_of(listed)
        return Picked(row, share, tuple(fallbacks[:named]), int(np.count_nonzero(view.mask)))

    def decide(
        self, x: FleetState, policy: Policy, request: Request, number: int, column: int, mask: BoolArray, now_s: float
    ) -> Picked | None:
        """Keep within the limits, answer, pick and count in, all in one, by the policy's compiled answer.

        Args:
            x: The fleet's state.
            policy: Decides.
            request: As it came; its own number does not count.
            number: Of the decision.
            column: Of the request's model.
            mask: Who is eligible, `(n,)`.
            now_s: The balancer's clock.

        None: the kernel has no such answer, or it is that nobody gets the request; nothing is counted then.
        """
        return None

    def count_in(self, x: FleetState, row: int, column: int, rows: float, now_s: float) -> None:
        """See `counting`."""
        counting.count_in(x, 0, row, column, rows, now_s)

    def count_out(self, x: FleetState, row: int, column: int, rows: float, now_s: float) -> None:
        """See `counting`."""
        counting.count_out(x, 0, row, column, rows, now_s)

    def look_up(self, x: FleetState, column: int, rows: float, key: int, now_s: float) -> FloatArray:
        """`cached` of all workers for a request with that key, `(n,)`."""
        request = _with_key(column, rows, key)
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            of_worker.fill_cached(x, 0, 0, request, now_s, x.decision.cached[0])
        found: FloatArray = x.decision.cached[0].copy()
        return found

    def remember(self, x: FleetState, row: int, request: Request, view: RequestView) -> None:
        """Note where a request with a key goes, see `counting`; `decide` does so by itself."""
        counting.remember(x, 0, row, row, request_of(request, view), view.at_s)

    def finish(
        self,
        x: FleetState,
        row: int,
        column: int,
        rows: float,
        key: int | None,
        served: int,
        latency_s: float,
        ok: bool,
        now_s: float,
    ) -> None:
        """See `counting`."""
        counting.finish(x, 0, row, column, rows, served, latency_s, ok, now_s)
        if key is not None:
            request = _with_key(column, rows, key)
            counting.remember_outcome(x, 0, 0, row, served, request, ok, now_s)

    def learn_of_pick(self, x: FleetState, picked: int, served: int, latency_s: float, ok: bool, now_s: float) -> None:
        """See `counting`."""
        counting.learn_of_pick(x, 0, picked, served, latency_s, ok, now_s)

    def take_report(
        self, x: FleetState, row: int, begins: bool, lines: Lines, batches: Lines, balancers: int, now_s: float
    ) -> bool:
        """See `reports`."""
        models = np.array(lines, np.float64).reshape(-1, reports.LINE_COLUMNS)
        executed = np.array(batches, np.float64).reshape(-1, reports.BATCH_COLUMNS)
        return reports.take_report(x, 0, row, begins, models, len(lines), executed, len(batches), balancers, now_s)

    def fade(self, x: FleetState, share: float) -> None:
        """See `counting`, for all workers."""
        counting.fade(x, 0, 0, x.decision.mask.shape[1], share)


def _with_key(column: int, rows: float, key: int) -> RequestFeatures:
    """As much of a request as caches go by."""
    return RequestFeatures(column, rows, mix(key), 1.0, math.inf, 0.0, 0)


def request_of(request: Request, view: RequestView) -> RequestFeatures:
    """The request, as the kernel's functions take it."""
    key, number = request.key, request.number
    assert isinstance(number, int)  # arrays are for the simulator's views
    assert key is None or isinstance(key, int)
    rows, deadline_s, priority = float(request.rows), float(request.deadline_s), float(request.priority)
    return RequestFeatures(
        view.column, rows, mix(number if key is None else key), float(key is not None), deadline_s, priority, number
    )
