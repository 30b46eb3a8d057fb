"""How long a model that generates takes: until the first token, for each token, and how many tokens there will be.

Both times are lines, learned as service times are (`service.py`): seconds to the first token by the tokens of prompts
to compute until then, this one's among them; seconds of a token by the requests that are there. How long an answer will
be nobody knows; it is taken to be the mean of the model's, or as long as the request allows where that is less.
"""

from dataclasses import dataclass

import numpy as np

from balancer.kernel.estimators.columns import At, per_model
from balancer.kernel.estimators.service import Service
from policies.base import FloatArray

DEFAULT_FIRST_S, DEFAULT_TOKEN_S = 3e-4, 0.01
"""As `Settings.estimators.default_service_s`: with one token of a prompt, and alone."""
DEFAULT_OUTPUT_TOKENS = 200.0
PRIOR_ANSWERS = 30.0
"""For how many answers those of equal devices count, at most: a time to the first token has in it what other balancers
sent there, and says little alone."""
_LEAST_ENDED = 1e-9
# Of no axis, as in `queue.py`.
_ZERO, _ONE = np.array(0.0), np.array(1.0)


@dataclass
class Lengths:
    """Of answers; `(..., n, m)`."""

    ended: FloatArray = per_model()
    """Answers that ended, fading, and their tokens."""
    ended_tokens: FloatArray = per_model()
    output_tokens: FloatArray = per_model(DEFAULT_OUTPUT_TOKENS)
    """The mean over the fleet: the same for all workers."""


def learn_length(lengths: Lengths, r: int, m: int, tokens: float) -> None:
    lengths.ended[r, m] += 1
    lengths.ended_tokens[r, m] += tokens


def fade_lengths(lengths: Lengths, first: int, workers: int, share: float) -> None:
    """Forget `share` of what ended, and renew the mean; for rows of one fleet."""
    for m in range(lengths.ended.shape[1]):
        ended, tokens = 0.0, 0.0
        for r in range(first, first + workers):
            lengths.ended[r, m] *= 1 - share
            lengths.ended_tokens[r, m] *= 1 - share
            ended += lengths.ended[r, m]
            tokens += lengths.ended_tokens[r, m]
        if ended > _LEAST_ENDED:
            for r in range(first, first + workers):
                lengths.output_tokens[r, m] = tokens / ended


def prompt_now_s(prefill: Service, at: At, to_compute: float | FloatArray) -> FloatArray:
    """Seconds that the worker computes a prompt of which it has not cached so many tokens."""
    seconds: FloatArray = prefill.per_row_s[at] * to_compute
    return seconds


def first_token_now_s(
    prefill: Service, at: At, waiting_tokens: float | FloatArray, to_compute: float | FloatArray
) -> FloatArray:
    """Seconds until the first token."""
    seconds: FloatArray = prefill.fixed_s[at] + prefill.per_row_s[at] * (waiting_tokens + to_compute)
    return seconds


def output_tokens_now(lengths: Lengths, at: At, max_tokens: float | FloatArray) -> FloatArray:
    """Tokens of the answer to a request that allows so many; 0: any number."""
    tokens = lengths.output_tokens[at]
    expected: FloatArray = np.where(max_tokens > _ZERO, np.minimum(tokens, max_tokens), tokens)
    return expected


def answered_now_s(
    decode: Service,
    at: At,
    first_token_s: float | FloatArray,
    output_tokens: float | FloatArray,
    pending: float | FloatArray,
) -> FloatArray:
    """Seconds until an answer of so many tokens is complete, beside so many other requests."""
    token_s = decode.fixed_s[at] + decode.per_row_s[at] * (pending + _ONE)
    seconds: FloatArray = first_token_s + output_tokens * token_s
    return seconds


def slowdown_now_s(
    decode: Service, at: At, prompt_s: float | FloatArray, output_tokens: float | FloatArray
) -> FloatArray:
    """Seconds by which a request delays each other one there: its prompt stalls them, and its tokens slow theirs."""
    seconds: FloatArray = prompt_s + output_tokens * decode.per_row_s[at]
    return seconds
