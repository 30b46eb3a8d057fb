"""Token bucket: most tokens first; the refill follows the queue, so tokens are room that the worker has shown."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from policies.base import BoolArray, FloatArray, option
from policies.choices import LEAST
from policies.costs import CostPolicy, most_of


@dataclasses.dataclass(frozen=True)
class TokenBucket(CostPolicy):
    """The eligible worker with most tokens; ties go to the shortest queue.

    Tokens are compared whole: 3.7 tokens let three requests pass, as 3.2 do, and then the queue decides. The buckets
    are the core's estimator, which refills them (the slower the longer the queue) and takes one for every pick.
    """

    name: ClassVar[str] = "token_bucket"
    summary: ClassVar[str] = "Most tokens, ties to the shortest queue; can shed when all buckets are empty."
    source: ClassVar[str] = "Turner, New directions in communications, IEEE Comm. Magazine 1986; queue feedback"

    when_empty: Literal["least_loaded", "shed"] = option(
        "least_loaded", "What to do when no eligible worker has a token: least_loaded (shortest queue) or shed (429)"
    )

    choice = LEAST
    facts: ClassVar = {"most_tokens": most_of("tokens")}

    @staticmethod
    def candidate(tokens: FloatArray, most_tokens: FloatArray, when_empty: float) -> BoolArray:
        """Whether it has the most whole tokens. With all buckets empty everybody has, and the queue decides: least
        loaded; to shed (1), the most is at least one."""
        # fmax turns debts and NaN into an empty bucket.
        chosen: BoolArray = np.floor(np.fmax(tokens, 0.0)) == np.maximum(np.floor(most_tokens), when_empty)
        return chosen

    @staticmethod
    def cost(pending: FloatArray) -> FloatArray:
        return pending
