"""What the library offers: the kernel's functions for production's one fleet. A `Call` holds the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from balancer.core.bounds import MAX_FALLBACKS
from balancer.core.kernel import counting, eligibility, of_worker, picking, reports
from balancer.core.kernel.answers import PROGRAM, Compiler, answering, by_program
from balancer.core.kernel.state import Ask, Books, Options
from balancer.native.call import (
    AMONG,
    BALANCERS,
    BATCHES,
    BID,
    DEADLINE_S,
    FALLBACKS,
    FULL,
    INVALID,
    KEY,
    KEYED,
    LATE,
    LATENCY_S,
    LINES,
    MODEL,
    NAMED,
    NOBODY,
    NOW_S,
    NUMBER,
    OK,
    PICKED,
    PRIORITY,
    PROPENSITY,
    REFUSED_AT,
    ROWS,
    SEED,
    SERVED,
    SHARE,
    SHED,
    STEP,
    WHOLE,
    WHOLE_REQUEST,
    WHOLE_SEQUENCE,
    Call,
    symbol_of,
)
from balancer.native.compiling import from_source, inlined
from policies import BUILTIN
from policies.base import Policy
from policies.hashing import lot_of, mix_array, rendezvous_cost

Entry = Callable[[Books, Options, Call], int]

_take_report = from_source(reports.take_report)
_mix = from_source(mix_array)
_count_in, _count_out = from_source(counting.count_in), from_source(counting.count_out)
_learn_of_pick, _fade = from_source(counting.learn_of_pick), from_source(counting.fade)
_finish = from_source(counting.finish)
_remember, _remember_outcome = from_source(counting.remember), from_source(counting.remember_outcome)
_fill_cached = from_source(of_worker.fill_cached)
_fill_behind = from_source(of_worker.fill_behind)
_keep_fresh, _fresh_until_s = from_source(eligibility.keep_fresh), from_source(eligibility.fresh_until_s)
_keep_within_limits = from_source(picking.keep_within_limits)
_draw, _uniform_of = from_source(picking.draw_by_sums), from_source(picking.uniform_of)
_name_fallbacks = from_source(picking.name_fallbacks)
_among, _best_s = from_source(picking.among), from_source(picking.best_s)
_pending_limit = from_source(picking.pending_limit)
_lot_of, _rendezvous_cost = from_source(lot_of), from_source(rendezvous_cost)


@inlined
def _ask(call: Call) -> Ask:
    f = call.numbers
    mixed_key = _mix(call.words[KEY] if f[KEYED] != 0 else call.words[NUMBER])
    return Ask(call.wholes[MODEL], f[ROWS], mixed_key, f[KEYED], f[DEADLINE_S], f[PRIORITY], call.words[NUMBER])


@inlined
def _pick(x: Books, call: Call, sole: int) -> int:
    """`sole`: who has it all; -1: the shares tell."""
    shares, f, w = x.desk.shares[0], call.numbers, sole
    f[PROPENSITY] = 1.0
    if w < 0:
        sums = x.desk.scratch[0, : len(shares)]
        w = _draw(shares, _uniform_of(call.words[SEED], call.words[NUMBER]), sums)
        if w >= 0:
            f[PROPENSITY] = shares[w] / sums[-1]
    if w >= 0:
        call.wholes[AMONG] = _among(x, 0)
        out = call.wholes[FALLBACKS : FALLBACKS + MAX_FALLBACKS]
        call.wholes[NAMED] = _name_fallbacks(x, 0, 0, w, _ask(call), f[NOW_S], out)
    return int(w)


def pick(x: Books, options: Options, call: Call) -> int:
    """Whom the lot falls on by `Desk.shares`, -1 where all are zero; writes its share and the fallbacks."""
    return _pick(x, call, -1)


def count_in(x: Books, options: Options, call: Call) -> int:
    """Count a pick in."""
    f, i = call.numbers, call.wholes
    _count_in(x, 0, i[PICKED], i[MODEL], f[ROWS], f[NOW_S])
    return 0


def finish(x: Books, options: Options, call: Call) -> int:
    """Count a request out, and learn from its outcome. Its key is the one that it was picked with."""
    f, i = call.numbers, call.wholes
    _finish(x, 0, i[PICKED], i[MODEL], f[ROWS], i[SERVED], f[LATENCY_S], f[OK] != 0, f[NOW_S])
    _remember_outcome(x, 0, 0, i[PICKED], i[SERVED], _ask(call), f[OK] != 0, f[NOW_S])
    return 0


def look_up(x: Books, options: Options, call: Call) -> int:
    """Write `cached` and `behind_s` of all workers for the request to `Desk.cached` and `Desk.behind`."""
    _fill_cached(x, 0, 0, _ask(call), call.numbers[NOW_S], x.desk.cached[0])
    _fill_behind(x, 0, 0, _ask(call), call.numbers[NOW_S], x.desk.behind[0])
    return 0


def keep_fresh(x: Books, options: Options, call: Call) -> int:
    """Leave in `Desk.mask` the eligible ones of those that may serve."""
    return int(_keep_fresh(x, 0, 0, call.numbers[NOW_S], x.desk.mask[0]))


def fresh_until_s(x: Books, options: Options, call: Call) -> int:
    """Write over `NOW_S` when the first of the workers that are fresh then no longer is."""
    f = call.numbers
    f[NOW_S] = _fresh_until_s(x, 0, 0, x.desk.mask.shape[1], f[NOW_S])
    return 0


def keep_within_limits(x: Books, options: Options, call: Call) -> int:
    """Leave in `Desk.mask` those that the limits permit; returns how many may serve."""
    return int(_keep_within_limits(x, 0, 0, _ask(call), call.numbers[NOW_S]))


def count_out(x: Books, options: Options, call: Call) -> int:
    """Count a request out."""
    f, i = call.numbers, call.wholes
    _count_out(x, 0, i[PICKED], i[MODEL], f[ROWS], f[NOW_S])
    return 0


def learn_of_pick(x: Books, options: Options, call: Call) -> int:
    """Learn from an outcome."""
    f, i = call.numbers, call.wholes
    _learn_of_pick(x, 0, i[PICKED], i[SERVED], f[LATENCY_S], f[OK] != 0, f[NOW_S])
    return 0


def fade(x: Books, options: Options, call: Call) -> int:
    """Let what was learned of service times fade."""
    _fade(x, 0, 0, x.desk.mask.shape[1], call.numbers[SHARE])
    return 0


def take_report(x: Books, options: Options, call: Call) -> int:
    """Take in a report: `LINES` of `Call.lines` and `BATCHES` of `Call.batches`."""
    f, i = call.numbers, call.wholes
    _take_report(x, 0, i[PICKED], call.lines, i[LINES], call.batches, i[BATCHES], i[BALANCERS], f[NOW_S])
    return 0


def bid(x: Books, options: Options, call: Call) -> int:
    """Write over `BID` what the worker `PICKED` bids for the key, as `consistent_hash` has it. Needs no lock: what it
    reads changes with the list of workers only, and nothing but the call is written."""
    w = call.wholes[PICKED]
    lot = _lot_of(x.desk.name_hash[0, w], np.uint64(_ask(call).mixed_key))
    call.numbers[BID] = _rendezvous_cost(lot, x.desk.weight[0, w])
    return 0


PUBLISHED = symbol_of("published")
"""By probabilities that another process computed, see `balancer.front.tables`."""
FIXED: tuple[Entry, ...] = (
    *(keep_fresh, fresh_until_s, keep_within_limits, pick),
    *(count_in, count_out, finish, learn_of_pick, fade, take_report, bid, look_up),
)


def entries() -> Iterator[tuple[str, Any]]:
    """All entries by name: `FIXED`, the published answer, those of shipped policies, and that of all programs."""
    for function in FIXED:
        yield function.__name__, function
    yield PUBLISHED, _entry(_given)
    compiler = Compiler(from_source, inlined)
    seen = {PROGRAM}
    yield symbol_of(PROGRAM), _entry(by_program(compiler))
    for kind in BUILTIN.values():
        for policy in _variants(kind):
            found = answering(policy, compiler)
            if found is not None and found.name not in seen:
                seen.add(found.name)
                yield symbol_of(found.name), _entry(found.answer)


def _variants(kind: type[Policy]) -> Iterator[Policy]:
    """The policy with all its options that differ in code: texts and switches."""
    choices: dict[str, tuple[Any, ...]] = {}
    hints = get_type_hints(kind)
    for name in kind().options():
        if get_origin(hints[name]) is Literal:
            choices[name] = get_args(hints[name])
        elif hints[name] is bool:
            choices[name] = (False, True)
    for values in product(*choices.values()):
        yield kind(**dict(zip(choices, values, strict=True)))


@inlined
def _limits(x: Books, call: Call) -> int:
    """0 where they leave somebody in `Desk.mask`, else why not."""
    if _among(x, 0) == 0:
        return NOBODY
    if _keep_within_limits(x, 0, 0, _ask(call), call.numbers[NOW_S]) > 0:
        return 0
    if _among(x, 0) > 0:
        call.numbers[REFUSED_AT] = _best_s(x, 0, 0, _ask(call), call.numbers[NOW_S])
        return LATE
    call.numbers[REFUSED_AT] = _pending_limit(x, 0, call.numbers[PRIORITY])
    return FULL


@inlined
def _keep_answered(x: Books) -> None:
    """Leave those in `Desk.mask` that have a share."""
    for w in range(x.desk.mask.shape[1]):
        x.desk.mask[0, w] = x.desk.shares[0, w] > 0


@inlined
def _given(x: Books, options: Options, e: int, first: int, ask: Ask, now_s: float) -> int:
    """The shares that lie in `Desk.cost`, of those in `Desk.mask`, made to sum to 1; all zero where these have none.

    Returns -1, as an answer does where nobody has it all.
    """
    shares, total = x.desk.shares[0], 0.0
    for w in range(len(shares)):
        shares[w] = x.desk.cost[0, w] if x.desk.mask[0, w] else 0.0
        total += shares[w]
    if total > 0:
        for w in range(len(shares)):
            shares[w] /= total
    return -1


def _entry(answer: Any) -> Any:
    def entry(x: Books, options: Options, call: Call) -> int:
        """The row that the policy picks among `Desk.mask`; writes its share and the fallbacks. Below 0: why nobody."""
        f, i = call.numbers, call.wholes
        if i[WHOLE] == WHOLE_REQUEST:
            refused = _limits(x, call)
            if refused < 0:
                return refused
        sole = answer(x, options, 0, 0, _ask(call), f[NOW_S])
        if sole < -1:
            return INVALID
        if i[WHOLE] == WHOLE_SEQUENCE:
            # Limits hold at the one worker that may serve it: no other can take its place.
            _keep_answered(x)
            refused = _limits(x, call)
            if refused < 0:
                return refused
        w = _pick(x, call, sole)
        if w < 0:
            return SHED
        if i[WHOLE] != STEP:
            _count_in(x, 0, w, i[MODEL], f[ROWS], f[NOW_S])
            _remember(x, 0, w, w, _ask(call), f[NOW_S])
        return w

    return entry
