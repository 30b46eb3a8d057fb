"""What models that generate are asked: lengths of prompts, and what they share with others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from balancer.load.arrivals import FloatArray
from policies.base import IntArray, UintArray
from simulator.arrivals import Prompts
from simulator.workload.draws import ONE, Distribution, whole_rows

_BLOCK_TOKENS = 32
"""Of a block: TensorRT-LLM's default; vLLM's is 16."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt: what all begin with, what those with its key have next, what was said before, and its own."""

    tokens: Distribution = ONE
    """Its own: rounded up, at least 1."""
    common_tokens: int = 0
    key_tokens: int = 0
    conversation: bool = False
    """Whether a prompt repeats all prompts and answers before it with the same key."""
    at_most: int = 32_768
    """Tokens of a prompt; longer ones are cut at their end."""


_NOTHING = PromptText()


def drawn(
    texts: Sequence[PromptText | None],
    model: npt.NDArray[np.int16],
    key: UintArray,
    u: FloatArray,
    output: npt.NDArray[np.int32],
) -> Prompts:
    """Prompts of requests in order of time, `(k,)` each.

    Args:
        texts: By model; None: it does not generate.
        model: Of each request.
        key: Of each, 0: none; then nothing of a prompt is of its key.
        u: Uniform numbers, which say how long each is.
        output: Tokens that each has generated, at least 1.
    """
    tokens, begins, shared = (np.zeros(len(model), np.int64) for _ in range(3))
    common = np.zeros(len(model), np.int64)
    for m, text in enumerate(texts):
        own = np.flatnonzero(model == m)
        asked = text or _NOTHING
        keyed = key[own] != 0
        begins[own] = asked.common_tokens + asked.key_tokens * keyed
        length = whole_rows(asked.tokens.quantile(u[own]), asked.at_most).astype(np.int64)
        if asked.conversation:
            begins[own] += np.where(keyed, _said_before(key[own], length + output[own]), 0)
        tokens[own] = np.minimum(begins[own] + length, asked.at_most)
        shared[own] = np.where(asked.conversation & keyed, tokens[own], np.minimum(begins[own], tokens[own]))
        common[own] = asked.common_tokens
    blocks = (shared // _BLOCK_TOKENS).astype(np.int32)
    return Prompts(tokens.astype(np.int32), output, blocks, _BLOCK_TOKENS, _names(key, blocks, common))


def _said_before(key: UintArray, said: IntArray) -> IntArray:
    """Tokens of all requests before each with the same key."""
    order = np.argsort(key, kind="stable")
    before = np.cumsum(said[order]) - said[order]
    first = np.flatnonzero(np.diff(key[order], prepend=~key[order[:1]]))
    before -= before[first].repeat(np.diff(first, append=len(key)))
    found = np.empty_like(before)
    found[order] = before
    return found


def _names(key: UintArray, blocks: npt.NDArray[np.int32], common: IntArray) -> IntArray:
    """Numbers of blocks, those of each request in turn: a block is of all as far as the common text goes, then of the
    key."""
    texts = np.unique(key, return_inverse=True)[1].repeat(blocks) + 1
    place: IntArray = np.arange(len(texts)) - (np.cumsum(blocks) - blocks).repeat(blocks)
    text_of = np.where((place + 1) * _BLOCK_TOKENS <= common.repeat(blocks), 0, texts)
    return text_of * (int(blocks.max(initial=0)) + 1) + place
