"""The decision, whole: who may be picked, the policy's answer and its check, the draw, fallbacks, counting in.

Everybody decides by `decide`: production's router, the compiled library, the simulator's engine, Envoy's module. Where
somebody else answers in between (a policy in NumPy over many fleets at once), its steps are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from balancer.kernel.counting import count_in, count_prompt_in, remember
from balancer.kernel.limits_and_draw import (
    best_s,
    draw_worker,
    keep_fresh,
    keep_sampled,
    keep_within_limits,
    name_fallbacks,
    pending_limit,
)
from balancer.kernel.policy_answers import Answer, Compiler
from balancer.kernel.state import AMONG, NAMED, PROPENSITY, REFUSED_AT, AnyArray, FleetState, Options, RequestFeatures
from policies.base import FloatArray

FRESH, LIMITS, DRAWS, NAMES, COUNTS, SEQUENCE, ONE = (1 << bit for bit in range(7))
"""How a decision is made, one or more. 0: only answer. Leave out stale workers; keep within limits, slow start, zones;
draw a worker; name fallbacks; count the pick in; the request is of a sequence: limits hold at its one worker, since
no other can take its place; the policy may pick a given worker alone, and the rest may be its fallbacks."""
AT_ONCE = LIMITS | DRAWS | NAMES | COUNTS
NOBODY, FULL, LATE, SHED, INVALID = range(-1, -6, -1)
"""In place of a row: nobody may be picked; all of them have too many pending; all would be late; the policy sheds; its
answer is no distribution, and somebody else is to decide."""

Decide = Callable[[FleetState, Options, int, int, RequestFeatures, float, float, int, int, FloatArray, AnyArray], int]
"""(state, options, fleet, row of its first worker, request, time, the draw, how, the given worker, `found`, fallbacks):
the worker that gets the request, or why nobody does. Who may serve it stands in `decision.mask`, where those who may be
picked are left. What is found beside goes to `found`, `(FOUND_COLUMNS,)`, and the fallbacks, see `name_fallbacks`."""


def permit(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float, found: FloatArray) -> int:
    """Leave those in `decision.mask` who may be picked; returns how many they are, or below 0 why nobody may."""
    if not np.count_nonzero(x.decision.mask[e]):
        return NOBODY
    count = keep_within_limits(x, e, first, request, now_s)
    if count > 0:
        return count
    if np.count_nonzero(x.decision.mask[e]):
        found[REFUSED_AT] = best_s(x, e, first, request, now_s)
        return LATE
    found[REFUSED_AT] = pending_limit(x, e, request.priority)
    return FULL


def admit(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float, found: FloatArray) -> int:
    """The same, and of very many a sample."""
    count = permit(x, e, first, request, now_s, found)
    return keep_sampled(x, e, request, count) if count > 0 else count


def keep_answered(x: FleetState, e: int) -> None:
    """Leave those in `decision.mask` that have a share."""
    for w in range(x.decision.mask.shape[1]):
        x.decision.mask[e, w] = x.decision.shares[e, w] > 0


def keep_one(x: FleetState, e: int, one: int) -> None:
    for w in range(x.decision.mask.shape[1]):
        x.decision.mask[e, w] = w == one


def take(x: FleetState, e: int, first: int, w: int, request: RequestFeatures, now_s: float) -> None:
    """Worker `w` gets the request: count it in, and note its key and what its prompt begins with."""
    count_in(x, e, first + w, request.model, request.rows, now_s)
    x.queue.sent_requests[first + w, request.model] += 1
    x.queue.sent_rows[first + w, request.model] += request.rows
    remember(x, e, w, first + w, request, now_s)
    count_prompt_in(x, e, w, first + w, request, now_s)


def deciding(answer: Answer, compiler: Compiler) -> Decide:
    source = compiler.source
    to_fresh, to_limits, to_answered, to_one = (
        source(keep_fresh),
        source(admit),
        source(keep_answered),
        source(keep_one),
    )
    draw, name, count = source(draw_worker), source(name_fallbacks), source(take)

    def decide(
        x: FleetState,
        options: Options,
        e: int,
        first: int,
        request: RequestFeatures,
        now_s: float,
        uniform: float,
        how: int,
        one: int,
        found: FloatArray,
        fallbacks: AnyArray,
    ) -> int:
        if how & FRESH:
            to_fresh(x, e, first, now_s, x.decision.mask[e])
        if how & LIMITS and not how & SEQUENCE:
            among = to_limits(x, e, first, request, now_s, found)
            if among < 0:
                return int(among)
            found[AMONG] = among
        if how & ONE:
            found[NAMED] = name(x, e, first, one, request, now_s, fallbacks)
            to_one(x, e, one)
        w = answer(x, options, e, first, request, now_s)
        if w < -1:
            return INVALID
        if how & LIMITS and how & SEQUENCE:
            to_answered(x, e)
            among = to_limits(x, e, first, request, now_s, found)
            if among < 0:
                return int(among)
            found[AMONG] = among
        found[PROPENSITY] = 1.0
        if how & DRAWS and w < 0:
            w = draw(x, e, uniform, found)
        if w < 0:
            return SHED
        if how & NAMES and not how & ONE:
            found[NAMED] = name(x, e, first, w, request, now_s, fallbacks)
        if how & COUNTS:
            count(x, e, first, w, request, now_s)
        return int(w)

    made: Decide = compiler.step(decide)
    return made
