"""The prompts of a decision log, as a workload: their tokens, those of the answers, and what they begin with."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policies.base import FloatArray, IntArray, Prefix, Request
from simulator.arrivals import Prompts

BLOCK_TOKENS = 32
"""Of a block: what prompts share is told to about so many tokens."""

_Blocks = list[tuple[int, int]]
"""In pieces: the number of the first block of each, and how many they are."""


class _Beginning(NamedTuple):
    blocks: int
    """Of all until its end."""
    piece: _Blocks
    """The last of them: those after the beginning before it."""


def prompts_of(requests: Sequence[Request], output_tokens: FloatArray) -> Prompts | None:
    """None where nobody asked a model that generates.

    A log has hashes of a prompt at some lengths, fewer the longer it is, and at its end, where the next one that goes
    on from there has none. So prompts are taken to go on from the end of the last one that began like them, while each
    is longer than the one before: a text that grows. What no other prompt begins with is left out of the blocks, since
    no cache can have it. Answers whose tokens are not known are taken to be as long as the mean of their model's.

    Args:
        requests: In order of time.
        output_tokens: Of their answers, `(k,)`; 0: not known.
    """
    tokens = np.array([max(round(float(np.max(each.prompt_tokens))), 0) for each in requests], np.int64)
    if not tokens.any():
        return None
    named = _Names()
    blocks, block = _shared(
        [named.of(each.prefix, int(own) // BLOCK_TOKENS) for each, own in zip(requests, tokens, strict=True)]
    )
    output, tokens = _filled_in(requests, output_tokens), np.maximum(tokens, 1)
    return Prompts(tokens.astype(np.int32), output, blocks, BLOCK_TOKENS, block)


class _Names:
    """Numbers of blocks, by what prompts begin with."""

    def __init__(self) -> None:
        self._known: dict[int, _Beginning] = {}
        self._next: dict[int, int] = {0: 0}
        """By a beginning, the last one that was seen after it; 0: texts part there, as after none."""
        self._numbers = 0

    def of(self, prefix: Prefix, most: int) -> _Blocks:
        """Those of a prompt, `most` at most."""
        done, before, found = 0, 0, list[tuple[int, int]]()
        for identity, tokens in prefix:
            if identity not in self._known:
                end = max(min(int(tokens) // BLOCK_TOKENS, most), done)
                self._known[identity] = _Beginning(end, self._piece(before, done, end))
                self._next[before] = identity if self._grows(before, end) else 0
            found += _cut(self._known[identity].piece, most - done)
            done, before = min(self._known[identity].blocks, most), identity
        return found

    def _grows(self, before: int, end: int) -> bool:
        last = self._next.get(before)
        return last is None or (last != 0 and self._known[last].blocks < end)

    def _piece(self, before: int, done: int, end: int) -> _Blocks:
        last = self._next.get(before, 0)
        piece = _cut(self._known[last].piece, end - done) if last and self._grows(before, end) else []
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
    block = first.repeat(count) + np.arange(count.sum()) - (np.cumsum(count) - count).repeat(count)
    times = np.bincount(block) if len(block) else np.zeros(0, np.int64)
    ends = np.cumsum(each)
    place = np.arange(len(block)) - (ends - each).repeat(each)
    several = np.where(times[block] > 1, place + 1, 0)
    kept = np.zeros(len(each), np.int64)
    np.maximum.at(kept, np.arange(len(each)).repeat(each), several)
    return kept.astype(np.int32), block[place < kept.repeat(each)]


def _filled_in(requests: Sequence[Request], output_tokens: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    models = np.array([each.model for each in requests])
    found = output_tokens.copy()
    for model in np.unique(models):
        own = models == model
        known = own & (output_tokens > 0)
        found[own & ~known] = output_tokens[known].mean() if known.any() else 1.0
    return np.maximum(np.round(found), 1).astype(np.int32)
