"""Prefix score: weighted scores of prefix, queue and memory, each from 0 to 1."""

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import WORST, FloatArray, option
from policies.choices import LEAST
from policies.costs import CostPolicy, lowest_of, most_of


@dataclasses.dataclass(frozen=True)
class PrefixScore(CostPolicy):
    """llm-d's default scorers. Of the prompt, the share that the worker has cached; of the requests that wait there,
    1 for the shortest queue and 0 for the longest, in proportion between them; of the memory, the share that is free.
    """

    name: ClassVar[str] = "prefix_score"
    summary: ClassVar[str] = "Weighted scores of cached prefix, queue and free memory, as llm-d's router has it."
    source: ClassVar[str] = "llm-d router, pkg/epp/config/loader/defaults.go"

    prefix_weight: float = option(3.0, "Weight of the share of the prompt that is cached", ge=0.0)
    queue_weight: float = option(2.0, "Weight of how short the queue is among all", ge=0.0)
    memory_weight: float = option(2.0, "Weight of the share of memory that is free", ge=0.0)

    choice = LEAST
    facts: ClassVar = {"longest": most_of("reported_pending"), "shortest": lowest_of("reported_pending")}

    @staticmethod
    def cost(
        matched_tokens: FloatArray,
        reported_pending: FloatArray,
        held_tokens: FloatArray,
        memory_tokens: FloatArray,
        prompt_tokens: FloatArray,
        longest: FloatArray,
        shortest: FloatArray,
        prefix_weight: FloatArray,
        queue_weight: FloatArray,
        memory_weight: FloatArray,
    ) -> FloatArray:
        prefix = np.fmin(matched_tokens / np.maximum(prompt_tokens, 1.0), 1.0)
        # Where all queues are equally long, all of them are the shortest.
        shortest, longest = np.fmin(shortest, WORST), np.fmin(longest, WORST)
        behind = (np.fmin(reported_pending, WORST) - shortest) / np.maximum(longest - shortest, 1e-9)
        used = np.fmin(np.fmin(held_tokens, WORST) / np.fmax(np.fmin(memory_tokens, WORST), 1.0), 1.0)
        return queue_weight * behind + memory_weight * used - prefix_weight * prefix
