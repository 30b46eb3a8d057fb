"""The kernel as Python runs it, and what stands in for it where it is compiled."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from balancer import bounds
from balancer.kernel import counting, limits_and_draw, reports, worker_columns
from balancer.kernel import deciding as steps
from balancer.kernel.block import ordinary_memory
from balancer.kernel.checked_answer import answer as checked
from balancer.kernel.deciding import INVALID, NOBODY, deciding
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from balancer.kernel.estimators.queue import peer_share_left, pending_now
from balancer.kernel.limits_and_draw import SAMPLED_OF
from balancer.kernel.policy_answers import Compiler, is_shipped
from balancer.kernel.state import (
    AMONG,
    FOUND_COLUMNS,
    MAX_FALLBACKS,
    MAX_PENDING,
    NAMED,
    PROPENSITY,
    REFUSED_AT,
    SAMPLED,
    SHED_LATE,
    SHEDDABLE_PENDING,
    SLOW_START_S,
    ZONE_BOUND_S,
    FleetState,
    RequestFeatures,
)
from balancer.kernel.view import LiveFleet, LiveView
from policies.base import BoolArray, FloatArray, Policy, Prefix, Request
from policies.hashing import mix, unit
from policies.traced import traced
from policies.traced.program import answered

new_tuple = tuple.__new__
"""Makes a named tuple of a plain one in half the time: for what every request needs."""
Lines = Sequence[tuple[float, ...]]


class PolicyAnswer(NamedTuple):
    view: LiveView
    probabilities: FloatArray | None
    """`(n,)`; None: it has no valid answer."""
    failure: str


class Picked(NamedTuple):
    worker: int
    """Row of who was picked; below 0: why nobody was, see `deciding`."""
    propensity: float
    fallbacks: tuple[int, ...]
    """Workers to try next, best first."""
    among: float


class Kernel:
    """The kernel's functions for one fleet, in plain Python. Rows are workers, in the state's order.

    Policies answer by NumPy then, so that costs are computed for all workers at once.
    """

    compiled = False
    seed = 0
    stamp = ""
    policy_answer: PolicyAnswer | None = None
    """Of the last decision, where it answered in Python; None: it did not."""

    def __init__(self) -> None:
        instead = {limits_and_draw.draw_worker: self._draw_worker, limits_and_draw.name_fallbacks: self._name_fallbacks}
        instead |= {steps.admit: self._admit_quickly, **self._steps()}
        self._decide = deciding(self._answer, Compiler(lambda step: instead.get(step, step)))
        self._found: Any = [0.0] * FOUND_COLUMNS
        self._settings, self._narrows = (0, b""), True
        """Settings as they were last, and whether by them not everybody who may serve a request may be picked."""

    def _steps(self) -> dict[Any, Any]:
        """What is done otherwise than the steps of a decision do it, to the same bits."""
        return {}

    @property
    def refused_at(self) -> float:
        return float(self._found[REFUSED_AT])

    def memory(self, size_bytes: int) -> Any:
        return ordinary_memory(size_bytes)

    def forget(self) -> None:
        """Another process has written to the fleet's scratch since the last call: nothing that was left there holds."""

    def keep_fresh(self, x: FleetState, servable: BoolArray, now_s: float) -> BoolArray:
        """Those of the workers, `(n,)`, that are eligible, see `eligibility`."""
        mask = servable.copy()
        limits_and_draw.keep_fresh(x, 0, 0, now_s, mask)
        return mask

    def fresh_until_s(self, x: FleetState, now_s: float) -> float:
        return limits_and_draw.fresh_until_s(x, 0, 0, x.decision.mask.shape[1], now_s)

    def admit(self, x: FleetState, request: Request, view: LiveView) -> tuple[int, BoolArray]:
        """Who in the view's mask may be picked, `(n,)`, and how many they are, or why nobody may, see `deciding`."""
        x.decision.mask[0] = view.mask
        assert isinstance(request.number, int)  # arrays are for the simulator's views
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            features = features_of(request, request.number, view.column)
            self.lay_out_prompt(x, request, view.column)
            count = steps.admit(x, 0, 0, features, view.at_s, self._found)
        return count, x.decision.mask[0].copy()

    def answer(self, x: FleetState, policy: Policy, request: Request, view: LiveView) -> FloatArray | None:
        """The policy's probabilities, `(n,)`, where the kernel has them by itself; else None.

        Programs run in Python as well, for the bits that they have everywhere.
        """
        program = None if is_shipped(policy) else traced(policy).program
        return None if program is None else answered(program, request, view)

    def decide(
        self,
        x: LiveFleet,
        policy: Policy,
        request: Request,
        number: int,
        column: int,
        mask: BoolArray,
        now_s: float,
        how: int,
        one: int = -1,
    ) -> Picked:
        """See `deciding.decide`.

        Args:
            x: The fleet's state.
            policy: Decides.
            request: As it came; its own number does not count.
            number: Of the decision.
            column: Of the request's model.
            mask: Who may serve it, `(n,)`; not written to afterwards.
            now_s: The balancer's clock.
            how: See `deciding`.
            one: Row of the worker that the policy may pick alone; -1: any.
        """
        self.policy_answer = None
        x.decision.mask[0] = mask
        found, fallbacks = self._found, [-1] * bounds.MAX_FALLBACKS
        self._look_at_settings(x)
        self.lay_out_prompt(x, request, column)
        options: Any = policy, request.numbered(number), None if self._narrows or one >= 0 else mask
        uniform, features = unit(mix(self.seed ^ number)), features_of(request, number, column)
        decide = self._decide_by_hashes if self._narrows or request.key is not None else self._decide
        w = decide(x, options, 0, 0, features, now_s, uniform, how, one, found, fallbacks)  # type: ignore[arg-type]
        return new_tuple(Picked, (w, found[PROPENSITY], tuple(fallbacks[: int(found[NAMED])]), found[AMONG]))

    def _look_at_settings(self, x: FleetState) -> None:
        settings = x.decision.mask.shape[1], x.decision.settings[0].tobytes()
        if settings != self._settings:
            row = x.decision.settings[0]
            limited = min(row[MAX_PENDING], row[SHEDDABLE_PENDING]) < np.inf or row[SHED_LATE] > 0
            samples = 0 < SAMPLED_OF * row[SAMPLED] < len(x.decision.mask[0])
            self._settings = settings
            self._narrows = bool(limited or samples or row[SLOW_START_S] > 0 or row[ZONE_BOUND_S] >= 0)

    def _admit_quickly(
        self, x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float, found: Any
    ) -> int:
        """As in `deciding`, in a third of the time where nobody is left out."""
        if self._narrows:
            return steps.admit(x, e, first, request, now_s, found)
        return int(np.count_nonzero(x.decision.mask[0])) or NOBODY

    def _decide_by_hashes(self, *arguments: Any) -> int:
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            return self._decide(*arguments)

    def _answer(self, x: FleetState, options: Any, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
        policy, numbered, mask = options
        left = x.decision.mask[0].copy() if mask is None else mask
        answer = self.policy_answer = ask(x, policy, numbered, request.model, left, now_s)  # type: ignore[arg-type]  # see `decide`
        if answer.probabilities is None:
            return INVALID
        if numbered.sequence:
            x.decision.shares[0] = answer.probabilities
        return -1

    def _draw_worker(self, x: FleetState, e: int, uniform: float, found: Any) -> int:
        assert self.policy_answer is not None
        assert self.policy_answer.probabilities is not None
        listed = self.policy_answer.probabilities.tolist()
        w = limits_and_draw.draw(listed, uniform)
        if w >= 0:
            found[PROPENSITY] = listed[w] / limits_and_draw.total_of(listed)
        return w

    def _name_fallbacks(
        self, x: FleetState, e: int, first: int, picked: int, request: RequestFeatures, now_s: float, out: Any
    ) -> int:
        queue = x.queue
        if self.policy_answer is not None:
            pending = self.policy_answer.view.pending
        elif np.count_nonzero(queue.peer_in_flight):
            pending = pending_now(queue, ..., peer_share_left(queue, ..., now_s))
        else:
            pending = queue.in_flight
        line = np.where(x.decision.mask[0], pending, np.inf)
        line[picked] = np.inf
        return limits_and_draw.name_least(line.tolist(), min(len(out), int(x.decision.settings[0, MAX_FALLBACKS])), out)

    def take(self, x: FleetState, row: int, column: int, request: Request, now_s: float) -> None:
        """Count a request in."""
        self.lay_out_prompt(x, request, column)
        with np.errstate(over="ignore"):
            steps.take(x, 0, 0, row, features_of(request, 0, column), now_s)

    def count_peer(self, x: FleetState, row: int, column: int, rows: float, ended: bool, now_s: float) -> None:
        """Count a peer's request in, or out once it `ended`."""
        count = counting.count_peer_out if ended else counting.count_in
        count(x, 0, row, column, rows, now_s)

    def count_out(self, x: FleetState, row: int, column: int, rows: float, now_s: float) -> None:
        counting.count_out(x, 0, row, column, rows, now_s)

    def look_up(self, x: FleetState, column: int, rows: float, key: int, now_s: float) -> FloatArray:
        """`cached` of all workers for a request with that key, `(n,)`."""
        request = _with_key(column, rows, key)
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            worker_columns.fill_cached(x, 0, 0, request, now_s, x.decision.cached[0])
        found: FloatArray = x.decision.cached[0].copy()
        return found

    def match(self, x: FleetState, request: Request, column: int) -> FloatArray:
        """`matched_tokens` of all workers, `(n,)`."""
        self.lay_out_prompt(x, request, column)
        found: FloatArray = x.decision.matched[0].copy()
        return found

    def lay_out_prompt(self, x: FleetState, request: Request, column: int) -> None:
        """Write down what the request's prompt begins with, and what each worker has of it, for what comes next."""
        if not request.prompt_tokens:
            return
        lay_out_prefix(x, request.prefix)
        self._match(x, column)

    def _match(self, x: FleetState, column: int) -> None:
        worker_columns.match(x, 0, 0, column)

    def count_peer_prompt(
        self, x: FleetState, row: int, column: int, tokens: float, prefix: Prefix, now_s: float
    ) -> None:
        """The worker tells of a prompt that another balancer sent there."""
        lay_out_prefix(x, prefix)
        counting.count_peer_prompt(x, 0, row, row, column, tokens, now_s)

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
        """See `counting`; a `row` of -1: of no pick of ours."""
        counting.finish(x, 0, row, column, rows, served, latency_s, ok, now_s)
        if key is not None:
            request = _with_key(column, rows, key)
            counting.remember_outcome(x, 0, 0, row, served, request, ok, now_s)

    def take_report(
        self, x: FleetState, row: int, begins: bool, lines: Lines, batches: Lines, balancers: int, now_s: float
    ) -> bool:
        models = np.array(lines, np.float64).reshape(-1, reports.LINE_COLUMNS)
        executed = np.array(batches, np.float64).reshape(-1, reports.BATCH_COLUMNS)
        return reports.take_report(x, 0, row, begins, models, len(lines), executed, len(batches), balancers, now_s)

    def fade(self, x: FleetState, share: float) -> None:
        counting.fade(x, 0, 0, x.decision.mask.shape[1], share)


def lay_out_prefix(x: FleetState, prefix: Prefix) -> None:
    """Write down what a prompt begins with."""
    d, known = x.decision, prefix[:MOST_CHECKPOINTS]
    if known:
        found, tokens = zip(*known, strict=True)
        # Of this type from the start: NumPy takes large and small ones together for floats.
        d.checkpoint[0, : len(known)] = np.array(found, np.uint64)
        d.checkpoint_tokens[0, : len(known)] = tokens
    d.checkpoint_tokens[0, len(known) :] = 0.0


def ask(x: LiveFleet, policy: Policy, request: Request, column: int, mask: BoolArray, now_s: float) -> PolicyAnswer:
    """What the policy says to a request, which has its number, of the workers in the mask, `(n,)`."""
    view = LiveView(x, mask, column, request, now_s)
    return PolicyAnswer(view, *checked(policy, request, view))


def _with_key(column: int, rows: float, key: int | None) -> RequestFeatures:
    return RequestFeatures(column, rows, mix(key or 0), float(key is not None), math.inf, 0.0, 0, 0.0, 0.0)


def features_of(request: Request, number: int, column: int) -> RequestFeatures:
    key = request.key
    assert key is None or isinstance(key, int)  # arrays are for the simulator's views
    rows, deadline_s, priority = float(request.rows), float(request.deadline_s), float(request.priority)
    mixed_key, keyed, prompt_tokens = mix(number if key is None else key), float(key is not None), request.prompt_tokens
    values = (
        column,
        rows,
        mixed_key,
        keyed,
        deadline_s,
        priority,
        number,
        float(prompt_tokens),
        float(request.max_tokens),
    )
    return new_tuple(RequestFeatures, values)
