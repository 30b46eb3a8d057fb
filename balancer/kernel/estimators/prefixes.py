"""Prompts of language models: who has computed what a prompt begins with, and how many tokens each has to compute.

Nobody reports what is in a worker's cache of prefixes. So a table of fixed size notes where each prompt went, by hashes
of what it begins with at a few lengths, and how many tokens the worker had been asked for until then. A cache that
gives up what was not used for longest has them until the different tokens that were asked for since fill its memory.
How many of so many tokens are different is learned from how soon tokens are asked for again: of w tokens in a row, on
average, the sum over a < w of the share that was not asked for among the a tokens before.

Source: Xiang et al. 2013, HOTL: a higher order theory of locality, ASPLOS (average footprint and fill time).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.kernel.estimators.columns import At, along, per_model, per_worker
from policies.base import FloatArray, UintArray

PREFIX_PLACES, PREFIX_WAYS = 16384, 4
"""Of the table: pairs of prefix and worker are hashed to places, a power of two; each has room for so many."""
MOST_CHECKPOINTS = 64
"""Lengths at which a prompt's beginning is hashed, by `next_checkpoint`: enough for a hundred thousand blocks."""
AGES = 24
"""Classes of ages in `reused`: each but the first is as wide as all before it."""
_YOUNG = 256.0
"""Tokens at which the first class ends."""
_OF_LATE = 16.0
"""How often its memory a worker is asked for until half of what was learned of ages is forgotten."""
_EACH = 4
_AN_OCTAVE = 4
# Of no axis, as in `queue.py`.
_ZERO, _ONE = np.array(0.0), np.array(1.0)


@dataclass
class Prefixes:
    """The table, and the tokens of own prompts that were sent to each worker."""

    key: UintArray = along("f prefix_places prefix_ways", np.uint64)
    """Hash of the prefix, and of the worker's name in one; 0: nothing is there."""
    used_at: FloatArray = along("f prefix_places prefix_ways")
    """The worker's `asked` when a prompt last began with it."""
    at_s: FloatArray = along("f prefix_places prefix_ways")
    """When that was: the oldest makes room."""
    taken_in: FloatArray = per_model()
    """Tokens that the worker has computed of prompts since it started, or is taken to."""
    asked: FloatArray = per_model()
    """Tokens of prompts that were sent there since then, computed or not."""
    asked_of_late: FloatArray = per_model()
    """Those that are counted in `reused`, or were not asked for before."""
    reused: FloatArray = along("r ages m")
    """Tokens that were asked for again, by how many were asked for meanwhile: below `_YOUNG`, twice that, and so on."""
    kept_for: FloatArray = per_model(np.inf)
    """How many tokens are asked for until the worker has given up what was not among them."""
    started_s: FloatArray = per_worker()
    """When it last did: what was sent before is lost."""
    memory_tokens: FloatArray = per_model()
    """Those that its memory holds, as it reports; 0: not known."""
    held_tokens: FloatArray = per_model()
    """Those that its requests held in there when it last reported."""
    waiting_tokens: FloatArray = per_worker()
    """Tokens to be computed of own prompts of which nothing was generated yet."""
    peer_waiting_tokens: FloatArray = per_worker(np.nan)
    """The same of other balancers' prompts, when the worker last reported; not a number: it does not tell, so that each
    of them is taken to have sent what this one has."""


def next_checkpoint(blocks: int) -> int:
    """The least number of blocks, beyond so many, of which the hash is kept: each of the first, then four an octave."""
    if blocks < _EACH:
        return blocks + 1
    step = 1
    while step * 2 * _AN_OCTAVE <= blocks:
        step *= 2
    return blocks + step


def matched(
    p: Prefixes, f: int, r: int, m: int, name_hash: Any, checkpoint: UintArray, checkpoint_tokens: FloatArray
) -> float:
    """Tokens that a prompt begins with, and that the worker in row `r` is taken to have.

    `checkpoint` are hashes of the first `checkpoint_tokens` of the prompt, ascending; 0 of them: there are no more.
    """
    found = 0.0
    for i in range(len(checkpoint)):
        tokens = checkpoint_tokens[i]
        if tokens <= 0 or not _has(p, f, r, m, checkpoint[i] ^ name_hash, tokens):
            break
        found = tokens
    return found


def _has(p: Prefixes, f: int, r: int, m: int, key: Any, tokens: float) -> bool:
    place = _place_of(p, key)
    i = _way_of(p, f, place, key)
    if i < 0:
        return False
    since = _since(p, f, r, m, place, i)
    return bool(since >= 0 and since + tokens <= p.kept_for[r, m])


def _since(p: Prefixes, f: int, r: int, m: int, place: int, i: int) -> float:
    """Tokens that were asked for since an entry was; below 0: the worker has started anew meanwhile."""
    if p.at_s[f, place, i] < p.started_s[r]:
        return -1.0
    return float(p.asked[r, m] - p.used_at[f, place, i])


def _place_of(p: Prefixes, key: Any) -> int:
    return int(key & np.uint64(p.key.shape[1] - 1))


def _way_of(p: Prefixes, f: int, place: int, key: Any) -> int:
    found = -1
    for i in range(p.key.shape[2]):
        if p.key[f, place, i] == key:
            found = i
    return found


def take_prompt(
    p: Prefixes,
    f: int,
    r: int,
    m: int,
    name_hash: Any,
    tokens: float,
    matched_tokens: float,
    checkpoint: UintArray,
    checkpoint_tokens: FloatArray,
    balancers: float,
    now_s: float,
) -> float:
    """An own prompt goes to the worker in row `r`, which is taken to have its first `matched_tokens`; returns how many
    it has to compute: one at least."""
    to_compute = max(tokens - matched_tokens, 1.0)
    alike = balancers if np.isnan(p.peer_waiting_tokens[r]) else 1.0
    p.waiting_tokens[r] += to_compute
    p.taken_in[r, m] += to_compute * alike
    _note(p, f, r, m, name_hash, tokens * alike, checkpoint, checkpoint_tokens, now_s)
    return to_compute


def take_peer_prompt(
    p: Prefixes,
    f: int,
    r: int,
    m: int,
    name_hash: Any,
    tokens: float,
    checkpoint: UintArray,
    checkpoint_tokens: FloatArray,
    now_s: float,
) -> None:
    """The worker in row `r` tells of a prompt that another balancer sent there."""
    found = matched(p, f, r, m, name_hash, checkpoint, checkpoint_tokens)
    p.taken_in[r, m] += max(tokens - found, 1.0)
    _note(p, f, r, m, name_hash, tokens, checkpoint, checkpoint_tokens, now_s)


def _note(
    p: Prefixes,
    f: int,
    r: int,
    m: int,
    name_hash: Any,
    asked: float,
    checkpoint: UintArray,
    checkpoint_tokens: FloatArray,
    now_s: float,
) -> None:
    """The worker in row `r` is asked for so many tokens, and will have what the prompt begins with."""
    before = 0.0
    for c in range(len(checkpoint)):
        if checkpoint_tokens[c] <= 0:
            break
        key = checkpoint[c] ^ name_hash
        place = _place_of(p, key)
        i = _way_of(p, f, place, key)
        if i >= 0:
            _count_again(p, r, m, checkpoint_tokens[c] - before, _since(p, f, r, m, place, i))
        else:
            i = 0
            for j in range(p.key.shape[2]):
                if p.at_s[f, place, j] < p.at_s[f, place, i]:
                    i = j
        p.key[f, place, i], p.used_at[f, place, i], p.at_s[f, place, i] = key, p.asked[r, m] + asked, now_s
        before = checkpoint_tokens[c]
    p.asked[r, m] += asked
    p.asked_of_late[r, m] += asked
    if p.asked_of_late[r, m] > _OF_LATE * p.memory_tokens[r, m] > 0:
        p.asked_of_late[r, m] *= 0.5
        for a in range(p.reused.shape[1]):
            p.reused[r, a, m] *= 0.5
    p.kept_for[r, m] = _kept_for(p, r, m)


def _count_again(p: Prefixes, r: int, m: int, tokens: float, since: float) -> None:
    """So many tokens are asked for again, after so many others; below 0: they are lost."""
    if since >= 0:
        a, below = 0, _YOUNG
        while since >= below and a < p.reused.shape[1] - 1:
            a, below = a + 1, 2 * below
        p.reused[r, a, m] += tokens


def _kept_for(p: Prefixes, r: int, m: int) -> float:
    """The tokens in a row of which so many are different as memory holds."""
    different, new, low, high = 0.0, 1.0, 0.0, _YOUNG
    for a in range(p.reused.shape[1]):
        again = p.reused[r, a, m] / p.asked_of_late[r, m]
        more = max(new - 0.5 * again, 0.0) * (high - low)
        if different + more >= p.memory_tokens[r, m] > 0:
            return float(low + (p.memory_tokens[r, m] - different) / more * (high - low))
        different, new, low, high = different + more, new - again, high, 2 * high
    return math.inf


def computed(p: Prefixes, r: int, tokens: float) -> None:
    """A worker generates the first token after an own prompt, or never will; `tokens`: see `take_prompt`."""
    p.waiting_tokens[r] = max(p.waiting_tokens[r] - tokens, 0.0)


def waiting_now(p: Prefixes, at: At, balancers: float | FloatArray) -> FloatArray:
    """Tokens of all prompts that a worker has still to compute, as far as is known; `balancers`: that it reports to."""
    own, peers = p.waiting_tokens[at], p.peer_waiting_tokens[at]
    waiting: FloatArray = own + np.where(np.isnan(peers), own * (balancers - _ONE), peers)
    return waiting


def take_memory(p: Prefixes, r: int, m: int, memory_tokens: float, held_tokens: float) -> None:
    """What a report says of a model's memory."""
    p.memory_tokens[r, m], p.held_tokens[r, m] = memory_tokens, held_tokens


def lose_prefixes(p: Prefixes, r: int, now_s: float) -> None:
    """The worker in row `r` has started anew."""
    p.started_s[r] = now_s
    for m in range(p.taken_in.shape[1]):
        p.taken_in[r, m] = p.asked[r, m] = p.asked_of_late[r, m] = 0.0
        p.kept_for[r, m] = np.inf
        for a in range(p.reused.shape[1]):
            p.reused[r, a, m] = 0.0


def cached_now(p: Prefixes, at: At) -> FloatArray:
    """Tokens of prompts that a worker is taken to have cached; `at`: worker and model."""
    known = p.memory_tokens[at] > _ZERO
    cached: FloatArray = np.where(known, np.minimum(p.taken_in[at], p.memory_tokens[at]), p.taken_in[at])
    return cached
