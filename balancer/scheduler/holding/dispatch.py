"""A turn: those who are held are asked for in their order, and who finds room leaves.

Put together from how a host knows who may serve a request (`see`) and what a policy answers (`choose`), as
`balancer.core.kernel.answers` puts policies together; with a `Compiler`, compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from balancer.core.holding.line import leave, put_first_who_waited_long, put_last
from balancer.core.holding.notes import count_for_now, take_back
from balancer.core.holding.room import has_room, keep_those_with_room
from balancer.core.holding.state import (
    DEADLINE,
    DETOUR,
    FORMING,
    MOST_LOOKS,
    MOST_NOTES,
    ORDER,
    SHEDS,
    WAITS,
    Held,
)
from balancer.core.kernel.answers import Compiler
from balancer.core.kernel.of_worker import completion_s
from balancer.core.kernel.picking import best_s
from balancer.core.kernel.state import Ask, Books
from policies.hashing import mix_array

See = Callable[[Any, Any, int, int, int, Ask, float], int]
"""(books, how, fleet, balancer, place, request, time): sets `Desk.mask` to who may be picked, and returns how
many they are: none, where it is worth waiting for; or `SHEDS`, or `NOBODY`."""
Choose = Callable[[Any, Any, int, int, int, Ask, float], int]
"""The same arguments: the worker that the policy picks among those in `Desk.mask`, or -1 to shed, or `WAITS`."""
Turn = Callable[[Any, Held, Any, int, int, int, int, float], int]
"""(books, held, how, fleet, balancer, row of its first worker, number of the next decision, time): takes who leaves out
of the line, writes `Held.leaves` and `Held.goes_to`, and returns how many they are. The books are as they were."""


def ask_for(held: Held, e: int, place: int, number: int, now_s: float) -> Ask:
    """The request at a place, as the kernel takes it: its deadline is what is left of it."""
    key, keyed = held.key[e, place], held.keyed[e, place]
    mixed = mix_array(key if keyed else np.uint64(number))
    left_s = held.deadline_s[e, place] - (now_s - held.since_s[e, place])
    return Ask(
        held.model[e, place], held.rows[e, place], mixed, 1.0 if keyed else 0.0, left_s, held.priority[e, place], number
    )


def is_hopeless(x: Books, held: Held, e: int, first: int, place: int, ask: Ask, now_s: float) -> bool:
    """Whether no worker in `Desk.mask` would be done by the deadline, where that matters to the order."""
    if held.settings[e, ORDER] != DEADLINE or held.late[e, place] or ask.deadline_s == math.inf:
        return False
    return bool(best_s(x, e, first, ask, now_s) > ask.deadline_s)


def is_near(x: Books, held: Held, e: int, first: int, w: int, best: int, ask: Ask, now_s: float) -> bool:
    """Whether a worker is expected to be done no more than the detour later than the best."""
    found_s = completion_s(x, e, w, first + w, ask, now_s)
    return bool(found_s <= held.settings[e, DETOUR] * completion_s(x, e, best, first + best, ask, now_s))


def shut(held: Held, e: int, b: int, model: int) -> int:
    """Note that no worker has room for the model in this turn; returns 1 where that is news."""
    news = held.shut[e, b, model] != held.turn[e, b]
    held.shut[e, b, model] = held.turn[e, b]
    return int(news)


def remember(held: Held, e: int, b: int, at: int, worker: int, gone: int) -> None:
    """Who stands at a position leaves, as number `gone` of this turn."""
    held.leaves[e, gone] = leave(held, e, b, at)
    held.goes_to[e, gone] = worker


class _Parts(NamedTuple):
    """What a turn is put together from, compiled."""

    see: See
    choose: Choose
    ask_for: Any
    keep_those_with_room: Any
    has_room: Any
    is_near: Any
    remember: Any
    count_for_now: Any


def _picking(parts: _Parts, compiler: Compiler) -> Any:
    """A step: a worker, whether the request goes there rather than being planned for it, and whether any worker has
    room for a request to this model."""
    choose, keep, fits, near = parts.choose, parts.keep_those_with_room, parts.has_room, parts.is_near

    def pick(
        x: Any, held: Held, how: Any, e: int, b: int, first: int, place: int, ask: Ask, now_s: float
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


def _following(parts: _Parts, compiler: Compiler) -> Any:
    """A step: who is held for the same model follows to the same worker, up to a full batch."""
    see, ask_for_one, remember_one, count = parts.see, parts.ask_for, parts.remember, parts.count_for_now

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
        while at < held.length[e, b] and looked < MOST_LOOKS and noted + followed < MOST_NOTES and rows < most:
            looked += 1
            other = held.line[e, b, at]
            fits = held.model[e, other] == model and rows + held.rows[e, other] <= most
            if fits:
                ask = ask_for_one(held, e, other, number + gone + followed, now_s)
                fits = see(x, how, e, b, other, ask, now_s) > 0 and x.desk.mask[e, w]
            if fits:
                rows += held.rows[e, other]
                count(x, held, e, first + w, model, held.rows[e, other], now_s, noted + followed)
                remember_one(held, e, b, at, w, gone + followed)
                followed += 1
            else:
                at += 1
        return followed

    return compiler.step(follow)


def turning(compiler: Compiler, see: See, choose: Choose) -> Turn:
    """A host's turn."""
    source = compiler.source
    parts = _Parts(
        see,
        choose,
        source(ask_for),
        source(keep_those_with_room),
        source(has_room),
        source(is_near),
        source(remember),
        source(count_for_now),
    )
    pick, follow = _picking(parts, compiler), _following(parts, compiler)
    ask_for_one, remember_one, count = parts.ask_for, parts.remember, parts.count_for_now
    first_who_waited, last = source(put_first_who_waited_long), source(put_last)
    hopeless, shut_model, undo = source(is_hopeless), source(shut), source(take_back)

    def turn(x: Any, held: Held, how: Any, e: int, b: int, first: int, number: int, now_s: float) -> int:
        held.turn[e, b] += 1
        first_who_waited(held, e, b, now_s)
        at, looked, gone, noted = 0, 0, 0, 0
        closed = 0
        while at < held.length[e, b] and looked < MOST_LOOKS and noted < MOST_NOTES and closed < held.models_held[e, b]:
            looked += 1
            place = held.line[e, b, at]
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
            w, leaves, some_room = pick(x, held, how, e, b, first, place, ask, now_s)
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
                if not some_room:
                    closed += shut_model(held, e, b, model)
                at += 1
                continue
            remember_one(held, e, b, at, w, gone)
            gone += 1
            if held.models[e, model, FORMING] > 0:
                followed = follow(x, held, how, e, b, first, at, gone, noted, number, now_s)
                gone, noted = gone + followed, noted + followed
        undo(x, held, e, noted)
        return gone

    made: Turn = compiler.step(turn)
    return made
