"""Least tokens: the fewest tokens of prompts to compute before this one's answer begins."""

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import WORST
from policies.choices import LEAST
from policies.costs import CostPolicy, Elements


def tokens_to_compute(waiting_tokens: Elements, matched_tokens: Elements, prompt_tokens: Elements) -> Elements:
    """Tokens of prompts that the worker would have to compute until this one's are; of elements."""
    own = np.maximum(prompt_tokens - np.fmin(np.fmax(matched_tokens, 0.0), WORST), 0.0)
    return np.fmin(np.fmax(waiting_tokens, 0.0), WORST) + own


@dataclasses.dataclass(frozen=True)
class LeastTokens(CostPolicy):
    """For language models: what waits there to be computed, and what of this prompt the worker has not cached.

    It knows no speeds, so it is for equal devices. Each request in flight counts as a token: that is what a step
    computes of it while it generates. Without prompts this is `least_requests`.
    """

    name: ClassVar[str] = "least_tokens"
    summary: ClassVar[str] = "Fewest tokens of prompts to compute, this one's uncached ones among them."
    source: ClassVar[str] = "llm-d router, token-load scorer; NVIDIA Dynamo, active prefill tokens"

    choice = LEAST

    @staticmethod
    def cost(
        waiting_tokens: Elements, matched_tokens: Elements, in_flight: Elements, prompt_tokens: Elements
    ) -> Elements:
        return tokens_to_compute(waiting_tokens, matched_tokens, prompt_tokens) + in_flight
