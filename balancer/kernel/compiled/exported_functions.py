"""What the library offers: the kernel's functions for production's one fleet. A `KernelCall` holds the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Literal, get_args, get_origin, get_type_hints

from balancer.bounds import MAX_FALLBACKS
from balancer.kernel import counting, deciding, limits_and_draw, reports, worker_columns
from balancer.kernel.compiled.call import (
    AHEAD,
    BALANCERS,
    BATCHES,
    BEGINS,
    BESIDE,
    BID,
    DEADLINE_S,
    FALLBACKS,
    HOW,
    KEY,
    KEYED,
    LATENCY_S,
    LINES,
    MAX_TOKENS,
    MODEL,
    NOW_S,
    NUMBER,
    OK,
    OUTPUT_TOKENS,
    PICKED,
    PRIORITY,
    PROMPT_TOKENS,
    REFUSED_AT,
    ROWS,
    SEED,
    SERVED,
    SHARE,
    TO_COMPUTE,
    KernelCall,
    symbol_of,
)
from balancer.kernel.compiled.numba_functions import from_source, inlined
from balancer.kernel.estimators.prefixes import computed
from balancer.kernel.policy_answers import PROGRAM, Compiler, answering, by_program
from balancer.kernel.state import FOUND_COLUMNS, FleetState, Options, RequestFeatures
from policies import BUILTIN
from policies.base import Policy
from policies.hashing import mix_array

Entry = Callable[[FleetState, Options, KernelCall], int]

_take_report = from_source(reports.take_report)
_mix = from_source(mix_array)
_count_peer_prompt = from_source(counting.count_peer_prompt)
_count_out = from_source(counting.count_out)
_count_in, _count_peer_out = from_source(counting.count_in), from_source(counting.count_peer_out)
_finish, _fade = from_source(counting.finish), from_source(counting.fade)
_computed = from_source(computed)
_learn_first_token, _learn_tokens = from_source(counting.learn_first_token), from_source(counting.learn_tokens)
_remember_outcome = from_source(counting.remember_outcome)
_match = from_source(worker_columns.match)
_fill_cached = from_source(worker_columns.fill_cached)
_fill_work_behind = from_source(worker_columns.fill_work_behind)
_keep_fresh, _fresh_until_s = from_source(limits_and_draw.keep_fresh), from_source(limits_and_draw.fresh_until_s)
_admit, _take = from_source(deciding.admit), from_source(deciding.take)
_uniform_of = from_source(limits_and_draw.uniform_of)
_sequence_bid = from_source(worker_columns.sequence_bid)


@inlined
def _request(call: KernelCall) -> RequestFeatures:
    f = call.numbers
    mixed_key = _mix(call.words[KEY] if f[KEYED] != 0 else call.words[NUMBER])
    number, prompt, most = call.words[NUMBER], f[PROMPT_TOKENS], f[MAX_TOKENS]
    of_request = f[ROWS], mixed_key, f[KEYED], f[DEADLINE_S], f[PRIORITY], number, prompt, most
    return RequestFeatures(call.wholes[MODEL], *of_request)


def take(x: FleetState, options: Options, call: KernelCall) -> int:
    """The worker `PICKED` gets the request: count it in, and note its key."""
    _take(x, 0, 0, call.wholes[PICKED], _request(call), call.numbers[NOW_S])
    return 0


def finish(x: FleetState, options: Options, call: KernelCall) -> int:
    """Count a request out, and learn from its outcome; its key is the one that it was picked with.

    A `PICKED` of -1: it was not counted in.
    """
    f, i = call.numbers, call.wholes
    _finish(x, 0, i[PICKED], i[MODEL], f[ROWS], i[SERVED], f[LATENCY_S], f[OK] != 0, f[NOW_S])
    _remember_outcome(x, 0, 0, i[PICKED], i[SERVED], _request(call), f[OK] != 0, f[NOW_S])
    return 0


def look_up(x: FleetState, options: Options, call: KernelCall) -> int:
    """Write `cached` and `work_behind_s` of all workers for the request to the arrays `cached` and `work_behind`."""
    _fill_cached(x, 0, 0, _request(call), call.numbers[NOW_S], x.decision.cached[0])
    _fill_work_behind(x, 0, 0, _request(call), call.numbers[NOW_S], x.decision.work_behind[0])
    return 0


def match(x: FleetState, options: Options, call: KernelCall) -> int:
    """Write what each worker has of the prompt that begins as `checkpoint` says, for `MODEL`, to `matched`."""
    _match(x, 0, 0, call.wholes[MODEL])
    return 0


def first_token(x: FleetState, options: Options, call: KernelCall) -> int:
    """The worker `PICKED` began to answer a prompt for `MODEL`, `LATENCY_S` after it was sent."""
    f, i = call.numbers, call.wholes
    _computed(x.prefixes, i[PICKED], f[TO_COMPUTE])
    _learn_first_token(x, 0, i[PICKED], i[MODEL], f[AHEAD], f[LATENCY_S])
    return 0


def end_prompt(x: FleetState, options: Options, call: KernelCall) -> int:
    """A request with a prompt ended, before it is counted out: what waits of it, `TO_COMPUTE`, no longer does. Learn
    from `OUTPUT_TOKENS` that came in the `LATENCY_S` after the first; 0: that was not seen."""
    f, i = call.numbers, call.wholes
    _computed(x.prefixes, i[PICKED], f[TO_COMPUTE])
    if f[OUTPUT_TOKENS] > 0:
        _learn_tokens(x, 0, i[PICKED], i[MODEL], f[BESIDE], f[LATENCY_S], f[OUTPUT_TOKENS])
    return 0


def count_peer_prompt(x: FleetState, options: Options, call: KernelCall) -> int:
    """The worker `PICKED` tells of another balancer's prompt of `PROMPT_TOKENS` for `MODEL`."""
    f, i = call.numbers, call.wholes
    _count_peer_prompt(x, 0, i[PICKED], i[PICKED], i[MODEL], f[PROMPT_TOKENS], f[NOW_S])
    return 0


def keep_fresh(x: FleetState, options: Options, call: KernelCall) -> int:
    """Leave in `decision.mask` the eligible ones of those that may serve."""
    return int(_keep_fresh(x, 0, 0, call.numbers[NOW_S], x.decision.mask[0]))


def fresh_until_s(x: FleetState, options: Options, call: KernelCall) -> int:
    """Write over `NOW_S` when the first of the workers that are fresh then no longer is."""
    f = call.numbers
    f[NOW_S] = _fresh_until_s(x, 0, 0, x.decision.mask.shape[1], f[NOW_S])
    return 0


def admit(x: FleetState, options: Options, call: KernelCall) -> int:
    """Leave in `decision.mask` those who may be picked; returns how many they are, or why nobody may."""
    f = call.numbers
    return int(_admit(x, 0, 0, _request(call), f[NOW_S], f[REFUSED_AT : REFUSED_AT + FOUND_COLUMNS]))


def count_out(x: FleetState, options: Options, call: KernelCall) -> int:
    """Count a request out."""
    f, i = call.numbers, call.wholes
    _count_out(x, 0, i[PICKED], i[MODEL], f[ROWS], f[NOW_S])
    return 0


def count_peer(x: FleetState, options: Options, call: KernelCall) -> int:
    """Count a peer's request in at the worker `PICKED`, or out where it ended, which `OK` says."""
    f, i = call.numbers, call.wholes
    if f[OK] != 0:
        _count_peer_out(x, 0, i[PICKED], i[MODEL], f[ROWS], f[NOW_S])
    else:
        _count_in(x, 0, i[PICKED], i[MODEL], f[ROWS], f[NOW_S])
    return 0


def fade(x: FleetState, options: Options, call: KernelCall) -> int:
    """Let what was learned of service times fade."""
    _fade(x, 0, 0, x.decision.mask.shape[1], call.numbers[SHARE])
    return 0


def take_report(x: FleetState, options: Options, call: KernelCall) -> int:
    """Take in a report: `LINES` of `KernelCall.lines` and `BATCHES` of `KernelCall.batches`.

    Returns 1 where the worker was stale before.
    """
    f, i = call.numbers, call.wholes
    r, count, executed = i[PICKED], i[LINES], i[BATCHES]
    return int(_take_report(x, 0, r, i[BEGINS] != 0, call.lines, count, call.batches, executed, i[BALANCERS], f[NOW_S]))


def bid(x: FleetState, options: Options, call: KernelCall) -> int:
    """Write over `BID` what the worker `PICKED` bids for the sequence. Needs no lock: what it
    reads changes with the list of workers only, and nothing but the call is written."""
    call.numbers[BID] = _sequence_bid(x, 0, call.wholes[PICKED], _request(call).mixed_key)
    return 0


FIXED: tuple[Entry, ...] = (
    *(keep_fresh, fresh_until_s, admit, take, count_out, count_peer, finish, fade),
    *(take_report, count_peer_prompt, first_token, end_prompt, bid, look_up, match),
)


def entries() -> Iterator[tuple[str, Any]]:
    """All entries by name: `FIXED`, those of shipped policies, and that of all programs."""
    for function in FIXED:
        yield function.__name__, function
    compiler = Compiler(from_source, inlined)
    seen = {PROGRAM}
    yield symbol_of(PROGRAM), _entry(by_program(compiler), compiler)
    for kind in BUILTIN.values():
        for policy in _variants(kind):
            found = answering(policy, compiler)
            if found is not None and found.name not in seen:
                seen.add(found.name)
                yield symbol_of(found.name), _entry(found.answer, compiler)


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


def _entry(answer: Any, compiler: Compiler) -> Any:
    decide = deciding.deciding(answer, compiler)

    def entry(x: FleetState, options: Options, call: KernelCall) -> int:
        """The row that the policy picks of `decision.mask`; writes its share and the fallbacks. Below 0: why nobody."""
        f, i = call.numbers, call.wholes
        uniform = _uniform_of(call.words[SEED], call.words[NUMBER])
        found, fallbacks = f[REFUSED_AT : REFUSED_AT + FOUND_COLUMNS], i[FALLBACKS : FALLBACKS + MAX_FALLBACKS]
        return decide(x, options, 0, 0, _request(call), f[NOW_S], uniform, i[HOW], i[PICKED], found, fallbacks)

    return entry
