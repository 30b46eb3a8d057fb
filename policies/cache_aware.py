"""Cache aware: the longest cached prefix, unless that is short or the queues are too unequal."""

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import WORST, FloatArray, option
from policies.choices import LEAST
from policies.costs import CostPolicy, lowest_of, most_of


@dataclasses.dataclass(frozen=True)
class CacheAware(CostPolicy):
    """SGLang's rule. Where queues are too unequal, the shortest. Else the worker that has most of the prompt cached,
    where that is more than `cache_threshold` of it; and where it is not, the one that has least cached of anything.
    """

    name: ClassVar[str] = "cache_aware"
    summary: ClassVar[str] = (
        "Longest cached prefix, or the shortest queue where they are unequal, as SGLang's router has it."
    )
    source: ClassVar[str] = "SGLang model gateway, model_gateway/src/policies/mod.rs"

    cache_threshold: float = option(0.5, "Share of the prompt that somebody must have cached", ge=0.0, le=1.0)
    balance_abs_threshold: float = option(32.0, "Requests by which queues must differ to count as unequal", ge=0.0)
    balance_rel_threshold: float = option(1.1, "And how many times as long the longest must be as the shortest", ge=1.0)

    choice = LEAST
    facts: ClassVar = {
        **{"longest": most_of("in_flight"), "shortest": lowest_of("in_flight")},
        "most_matched": most_of("matched_tokens"),
    }

    @staticmethod
    def cost(
        in_flight: FloatArray,
        matched_tokens: FloatArray,
        cached_tokens: FloatArray,
        prompt_tokens: FloatArray,
        longest: FloatArray,
        shortest: FloatArray,
        most_matched: FloatArray,
        cache_threshold: FloatArray,
        balance_abs_threshold: FloatArray,
        balance_rel_threshold: FloatArray,
    ) -> FloatArray:
        shortest, longest = np.fmin(shortest, WORST), np.fmin(longest, WORST)
        unequal = (longest - shortest > balance_abs_threshold) & (longest > balance_rel_threshold * shortest)
        by_prefix = np.where(most_matched > cache_threshold * prompt_tokens, -matched_tokens, cached_tokens)
        return np.where(unequal, in_flight, by_prefix)
