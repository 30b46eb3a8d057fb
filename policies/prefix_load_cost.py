"""Prefix and load in one cost: tokens to compute of prompts, and tokens that are held."""

import dataclasses
from typing import ClassVar

from policies.base import FloatArray, option
from policies.choices import softmin_of
from policies.costs import CostPolicy
from policies.least_tokens import tokens_to_compute


@dataclasses.dataclass(frozen=True)
class PrefixLoadCost(CostPolicy):
    """NVIDIA Dynamo's cost of a worker: `prefill_weight` times the tokens that it would have to compute of prompts,
    this one's uncached ones among them, and the tokens that its requests hold. Without prompts all cost alike.

    There both are counted in blocks, and what is held by the router itself; here the worker reports it.
    """

    name: ClassVar[str] = "prefix_load_cost"
    summary: ClassVar[str] = "Prompt tokens to compute plus tokens held, as NVIDIA Dynamo's router has it."
    source: ClassVar[str] = "NVIDIA Dynamo, docs/components/router/router-concepts.md"

    prefill_weight: float = option(
        1.0,
        "What a token to compute of a prompt counts, one that is held being 1 (overlap_score_weight)",
        ge=0.0,
    )
    temperature: float = option(
        0.0, "Relative spread of the choice (router_temperature); 0: only the least cost", ge=0.0
    )

    choice = softmin_of("temperature")

    @staticmethod
    def cost(
        waiting_tokens: FloatArray,
        matched_tokens: FloatArray,
        held_tokens: FloatArray,
        prompt_tokens: FloatArray,
        prefill_weight: FloatArray,
    ) -> FloatArray:
        to_compute = tokens_to_compute(waiting_tokens, matched_tokens, prompt_tokens)
        tokens: FloatArray = prefill_weight * to_compute + held_tokens
        return tokens
