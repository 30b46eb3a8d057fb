"""A dispatch: those who are held are asked for in their order, and who finds capacity leaves.

It works on the estimators themselves, so that every policy sees what was planned in every column; all of it is taken
back at the end.

Put together from how a host knows who may serve a request (`see`) and what a policy answers (`choose`), as
`balancer.kernel.policy_answers` puts policies together; with a `Compiler`, compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from balancer.kernel.counting import count_in
from balancer.kernel.limits_and_draw import best_s
from balancer.kernel.policy_answers import Compiler
from balancer.kernel.state import FleetState, RequestFeatures
from balancer.kernel.worker_columns import completion_s
from balancer.scheduler.holding.state import (
    DEADLINE,
    DETOUR,
    FORMING,
    MOST_LOOKS,
    MOST_UNDO,
    ORDER,
    SHEDS,
    WAITS,
    Held,
    has_capacity,
    keep_those_with_capacity,
)
from balancer.scheduler.holding.wait_queue import leave, put_first_who_waited_long, put_last
from policies.hashing import mix_array

See = Callable[[Any, Any, int, int, int, RequestFeatures, float], int]
"""(fleet_state, how, fleet, balancer, place, request, time): sets `decision.mask` to who may be picked, and returns how
many they are: none, where it is worth waiting for; or `SHEDS`, or `NOBODY`."""
Choose = Callable[[Any, Any, int, int, int, RequestFeatures, float], int]
"""The same arguments: the worker that the policy picks among those in `decision.mask`, or -1 to shed, or `WAITS`."""
Dispatch = Callable[[Any, Held, Any, int, int, int, int, float], int]
"""(state, held, how, fleet, balancer, row of its first worker, number of the next decision, time): takes who leaves out
of the wait queue, writes `Held.leaves` and `Held.goes_to`, and returns how many they are. The fleet's state is
as it was."""


def ask_for(held: Held, e: int, place: int, number: int, now_s: float) -> RequestFeatures:
    """The request at a place, as the kernel takes it: its deadline is what is left of it."""
    key, keyed = held.key[e, place], held.keyed[e, place]
    mixed = mix_array(key if keyed else np.uint64(number))
    left_s = held.deadline_s[e, place] - (now_s - held.since_s[e, place])
    of_request = held.rows[e, place], mixed, 1.0 if keyed else 0.0, left_s, held.priority[e, place], number
    # What is planned for a request leaves its prompt aside; who decides about it knows it.
    return RequestFeatures(held.model[e, place], *of_request, 0.0, 0.0)


def is_hopeless(x: FleetState, held: Held, e: int, first: int, place: int, ask: RequestFeatures, now_s: float) -> bool:
    """Whether no worker in `decision.mask` would be done by the deadline, where that matters to the order."""
    if held.settings[e, ORDER] != DEADLINE or held.late[e, place] or ask.deadline_s == math.inf:
        return False
    return bool(best_s(x, e, first, ask, now_s) > ask.deadline_s)


def is_near(
    x: FleetState, held: Held, e: int, first: int, w: int, best: int, ask: RequestFeatures, now_s: float
) -> bool:
    """Whether a worker is expected to be done no more than the detour later than the best."""
    found_s = completion_s(x, e, w, first + w, ask, now_s)
    return bool(found_s <= held.settings[e, DETOUR] * completion_s(x, e, best, first + best, ask, now_s))


def close(held: Held, e: int, b: int, model: int) -> int:
    """Note that no worker has capacity for the model in this dispatch; returns 1 where that is new."""
    new = held.shut[e, b, model] != held.dispatches[e, b]
    held.shut[e, b, model] = held.dispatches[e, b]
    return int(new)


def remember(held: Held, e: int, b: int, at: int, worker: int, gone: int) -> None:
    """Who stands at a position leaves, as number `gone` of this dispatch."""
    held.leaves[e, gone] = leave(held, e, b, at)
    held.goes_to[e, gone] = worker


def count_for_now(
    x: FleetState, held: Held, e: int, r: int, model: int, rows: float, now_s: float, number: int
) -> None:
    """Count a request in, and keep what stood there before as entry `number` of the undo log."""
    q, t, entry = x.queue, x.tokens, held.undo[e, number]
    entry[0], entry[1] = r, model
    entry[2], entry[3], entry[4] = q.in_flight[r], q.charged_until_s[r], q.progress_s[r]
    entry[5], entry[6] = q.known_work_s[r], q.executing_s[r]
    entry[7], entry[8], entry[9] = q.peer_in_flight[r], q.peer_work_s[r], q.peer_counted_s[r]
    entry[10], entry[11] = q.known_rows[r, model], q.waiting_rows[r, model]
    entry[12], entry[13] = q.known_work_model_s[r, model], q.waiting_model_s[r, model]
    entry[14], entry[15], entry[16] = t.level[r], t.rate_per_s[r], t.at_s[r]
    entry[17], entry[18] = q.forming_rows[r, model], q.known_requests[r, model]
    count_in(x, e, r, model, rows, now_s)


def undo(x: FleetState, held: Held, e: int, count: int) -> None:
    """Take back the first `count` entries of the undo log, the last one first, to the last bit."""
    q, t = x.queue, x.tokens
    for i in range(count):
        entry = held.undo[e, count - 1 - i]
        r, model = int(entry[0]), int(entry[1])
        q.in_flight[r], q.charged_until_s[r], q.progress_s[r] = entry[2], entry[3], entry[4]
        q.known_work_s[r], q.executing_s[r] = entry[5], entry[6]
        q.peer_in_flight[r], q.peer_work_s[r], q.peer_counted_s[r] = entry[7], entry[8], entry[9]
        q.known_rows[r, model], q.waiting_rows[r, model] = entry[10], entry[11]
        q.known_work_model_s[r, model], q.waiting_model_s[r, model] = entry[12], entry[13]
        t.level[r], t.rate_per_s[r], t.at_s[r] = entry[14], entry[15], entry[16]
        q.forming_rows[r, model], q.known_requests[r, model] = entry[17], entry[18]


def _picking(compiler: Compiler, choose: Choose) -> Any:
    """A step: a worker, whether the request goes there rather than being planned for it, and whether any worker has
    capacity for a request to this model."""
    keep, fits = compiler.source(keep_those_with_capacity), compiler.source(has_capacity)
    near = compiler.source(is_near)

    def pick(
        x: Any, held: Held, how: Any, e: int, b: int, first: int, place: int, ask: RequestFeatures, now_s: float
    ) -> tuple[int, bool, bool]:
        best = choose(x, how, e, b, place, ask, now_s)
        if best < 0 or fits(x, held, e, first + best, ask.model, ask.rows, now_s):
            return best, True, True
        if keep(x, held, e, first, ask.model, 1.0, now_s) == 0:
            return best, False, False
        if keep(x, held, e, first, ask.model, ask.rows, now_s) == 0:
            return best, False, True
        other = choose(x, how, e, b, place, ask, now_s)
        if other >= 0 and near(x, held, e, first, other, best, ask, now_s):
            return other, True, True
        return best, False, True

    return compiler.step(pick)


def _following(compiler: Compiler, see: See) -> Any:
    """A step: who is held for the same model follows to the same worker, up to a full batch."""
    ask_for_one, remember_one = compiler.source(ask_for), compiler.source(remember)
    count = compiler.source(count_for_now)

    def follow(
        x: Any,
        held: Held,
        how: Any,
        e: int,
        b: int,
        first: int,
        at: int,
        gone: int,
        noted: int,
        number: int,
        now_s: float,
    ) -> int:
        """Returns how many; the one who left stood at `at`, and is the last that is gone."""
        place, w = held.leaves[e, gone - 1], held.goes_to[e, gone - 1]
        model = held.model[e, place]
        rows, most = held.rows[e, place], x.service.max_batch_rows[first + w, model]
        looked, followed = 0, 0
        while at < held.length[e, b] and looked < MOST_LOOKS and noted + followed < MOST_UNDO and rows < most:
            looked += 1
            other = held.wait_queue[e, b, at]
            fits = held.model[e, other] == model and rows + held.rows[e, other] <= most
            if fits:
                ask = ask_for_one(held, e, other, number + gone + followed, now_s)
                fits = see(x, how, e, b, other, ask, now_s) > 0 and x.decision.mask[e, w]
            if fits:
                rows += held.rows[e, other]
                count(x, held, e, first + w, model, held.rows[e, other], now_s, noted + followed)
                remember_one(held, e, b, at, w, gone + followed)
                followed += 1
            else:
                at += 1
        return followed

    return compiler.step(follow)


def dispatching(compiler: Compiler, see: See, choose: Choose) -> Dispatch:
    source = compiler.source
    pick, follow = _picking(compiler, choose), _following(compiler, see)
    ask_for_one, remember_one, count = source(ask_for), source(remember), source(count_for_now)
    first_who_waited, last = source(put_first_who_waited_long), source(put_last)
    hopeless, close_model, take_back = source(is_hopeless), source(close), source(undo)

    def dispatch(x: Any, held: Held, how: Any, e: int, b: int, first: int, number: int, now_s: float) -> int:
        held.dispatches[e, b] += 1
        first_who_waited(held, e, b, now_s)
        at, looked, gone, noted = 0, 0, 0, 0
        closed = 0
        while at < held.length[e, b] and looked < MOST_LOOKS and noted < MOST_UNDO and closed < held.models_held[e, b]:
            looked += 1
            place = held.wait_queue[e, b, at]
            model, rows = held.model[e, place], held.rows[e, place]
            ask = ask_for_one(held, e, place, number + gone, now_s)
            seen = see(x, how, e, b, place, ask, now_s)
            if seen < 0:
                remember_one(held, e, b, at, seen, gone)
                gone += 1
                continue
            if seen == 0:
                at += 1
                continue
            if hopeless(x, held, e, first, place, ask, now_s):
                last(held, e, b, at)
                continue
            w, leaves, some_capacity = pick(x, held, how, e, b, first, place, ask, now_s)
            if w == WAITS:
                at += 1
                continue
            if w < 0:
                remember_one(held, e, b, at, SHEDS, gone)
                gone += 1
                continue
            count(x, held, e, first + w, model, rows, now_s, noted)
            noted += 1
            if not leaves:
                if not some_capacity:
                    closed += close_model(held, e, b, model)
                at += 1
                continue
            remember_one(held, e, b, at, w, gone)
            gone += 1
            if held.models[e, model, FORMING] > 0:
                followed = follow(x, held, how, e, b, first, at, gone, noted, number, now_s)
                gone, noted = gone + followed, noted + followed
        take_back(x, held, e, noted)
        return gone

    made: Dispatch = compiler.step(dispatch)
    return made
