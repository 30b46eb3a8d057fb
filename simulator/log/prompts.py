"""The prompts of a decision log, as a workload: their tokens, those of the answers, and what they begin with."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policies.base import FloatArray, IntArray, Prefix, Request
from simulator.arrivals import Prompts
from simulator.spec import ModelSpec

BLOCK_TOKENS = 32
"""Tokens of a block of the twin's prefix caches, as the simulator's own workloads have it."""
_LEAST_TOKEN_S = 1e-5
_ANY = np.iinfo(np.int32).max

_Blocks = list[tuple[int, int]]
"""In pieces: the number of the first block of each, and how many they are."""


class _Beginning(NamedTuple):
    blocks: int
    """Of all until its end."""
    piece: _Blocks
    """The last of them: those after the beginning before it."""


def prompts_of(requests: Sequence[Request], output_tokens: FloatArray, cached_tokens: FloatArray) -> Prompts | None:
    """None where nobody asked a model that generates.

    A log has hashes of a prompt at some lengths, fewer the longer it is, and at its end. So where the next prompt goes
    on from there, or parts from it, there is no hash. Prompts are taken to go on from the end of the last one that
    began like them, while each is longer than the one before: a text that grows. Of those that part, the rest that they
    share without a hash is what workers told that they had of such prompts. What no other prompt begins with is left
    out of the blocks, since no cache can have it. Answers whose tokens are not known are taken to be as long as the
    mean of their model's.

    Args:
        requests: In order of time.
        output_tokens: Of their answers, `(k,)`; 0: not known.
        cached_tokens: Of their prompts, that the workers said they had, `(k,)`; not a number: it died.
    """
    told = np.nan_to_num([float(np.max(each.prompt_tokens)) for each in requests])
    tokens = np.clip(np.round(told), 0, _ANY).astype(np.int64)
    if not tokens.any():
        return None
    known = [
        (each.prefix, int(own) // BLOCK_TOKENS, int(cached) // BLOCK_TOKENS)
        for each, own, cached in zip(requests, tokens, np.nan_to_num(cached_tokens), strict=True)
    ]
    first = _Names({})
    for each in known:
        first.of(*each)
    named = _Names({beginning: int(np.median(rests)) for beginning, rests in first.rests.items()})
    blocks, block = _shared([named.of(*each) for each in known])
    output, tokens = _filled_in(requests, output_tokens), np.maximum(tokens, 1)
    return Prompts(tokens.astype(np.int32), output, blocks, BLOCK_TOKENS, block)


class _Names:
    """Numbers of blocks, by what prompts begin with."""

    def __init__(self, shared: Mapping[int, int]) -> None:
        """`shared`: of a beginning, how many blocks behind it are the same in all prompts that part there."""
        self._shared = shared
        self.rests: defaultdict[int, list[int]] = defaultdict(list)
        """What workers had behind a beginning of those that part there, in blocks."""
        self._known: dict[int, _Beginning] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {0: 0}
        """By a beginning, the first one that was seen after it, and the last; 0: texts part there, as after none."""
        self._numbers = 0

    def of(self, prefix: Prefix, most: int, cached: int) -> _Blocks:
        """Those of a prompt, `most` at most; `cached`: how many its worker had."""
        done, before, found, is_new = 0, 0, list[tuple[int, int]](), False
        for identity, tokens in prefix:
            if identity not in self._known:
                end = max(min(int(tokens) // BLOCK_TOKENS, most), done)
                if before and not is_new and cached >= done:
                    self.rests[before].append(max(min(cached, end - 1) - done, 0))
                self._known[identity] = _Beginning(end, self._piece(before, done, end))
                self._first.setdefault(before, identity)
                self._last[before] = identity if self._grows(before, end) else 0
                is_new = True
            found += _cut(self._known[identity].piece, most - done)
            done, before = min(self._known[identity].blocks, most), identity
        return found

    def _grows(self, before: int, end: int) -> bool:
        last = self._last.get(before)
        return last is None or (last != 0 and self._known[last].blocks < end)

    def _piece(self, before: int, done: int, end: int) -> _Blocks:
        first, last = self._first.get(before, 0), self._last.get(before, 0)
        piece: _Blocks = []
        if last and self._grows(before, end):
            piece = _cut(self._known[last].piece, end - done)
        elif before and first:
            piece = _cut(self._known[first].piece, min(self._shared.get(before, 0), end - done))
        new = end - done - sum(count for _, count in piece)
        if new <= 0:
            return piece
        self._numbers += new
        return [*piece, (self._numbers - new, new)]


def _cut(pieces: _Blocks, most: int) -> _Blocks:
    """The first so many blocks."""
    found = []
    for first, count in pieces:
        if most > 0:
            found.append((first, min(count, most)))
            most -= count
    return found


def _shared(pieces: Sequence[_Blocks]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], IntArray]:
    """How many blocks each prompt begins with that another one has too, or more beyond them; and these, in turn."""
    each = np.array([sum(count for _, count in own) for own in pieces], np.int64)
    first = np.array([first for own in pieces for first, _ in own], np.int64)
    count = np.array([count for own in pieces for _, count in own], np.int64)
    block = first.repeat(count) + _places(count)
    times = np.bincount(block) if len(block) else np.zeros(0, np.int64)
    place = _places(each)
    several = np.where(times[block] > 1, place + 1, 0)
    kept = np.zeros(len(each), np.int64)
    np.maximum.at(kept, np.arange(len(each)).repeat(each), several)
    return kept.astype(np.int32), block[place < kept.repeat(each)]


def _places(each: npt.NDArray[np.integer[Any]]) -> IntArray:
    """0, 1, ... of each in turn, as many as it has."""
    found: IntArray = np.arange(each.sum()) - (np.cumsum(each) - each).repeat(each)
    return found


def within(prompts: Prompts, models: Sequence[ModelSpec], model: npt.NDArray[np.integer[Any]]) -> Prompts:
    """Cut so that none is longer with its answer, which is one token at least, than any device of its model remembers.

    Args:
        prompts: With answers, `(k,)`.
        models: Those that generate, and others.
        model: The index of each request's, `(k,)`.
    """
    remembers = [one.generation.devices.values() if one.generation else () for one in models]
    least = [min((device.memory_tokens for device in devices), default=_ANY) for devices in remembers]
    most = np.array(least)[model]
    tokens = np.minimum(prompts.tokens, most - 1).astype(np.int32)
    output = np.minimum(prompts.output, most - tokens).astype(np.int32)
    blocks = np.minimum(prompts.blocks, tokens // prompts.block_tokens)
    block = prompts.block[_places(prompts.blocks) < blocks.repeat(prompts.blocks)]
    return Prompts(tokens, output, blocks, prompts.block_tokens, block)


def believed(output_tokens: FloatArray, latency_s: FloatArray) -> FloatArray:
    """What workers say that they answered, `(k,)`; 0, not known, where nothing could be as fast. `latency_s`: not a
    number where it is not known."""
    found: FloatArray = np.where(output_tokens * _LEAST_TOKEN_S > latency_s, 0.0, output_tokens)
    return found


def _filled_in(requests: Sequence[Request], output_tokens: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    models = np.array([each.model for each in requests])
    found = np.minimum(output_tokens, _ANY)
    for model in np.unique(models):
        own = models == model
        known = own & (output_tokens > 0)
        found[own & ~known] = found[known].mean() if known.any() else 1.0
    return np.maximum(np.round(found), 1).astype(np.int32)
