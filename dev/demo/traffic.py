"""The demo's traffic: what is sent, how much, and in which order the policies take their turns. Pure."""

import dataclasses

import numpy as np

from balancer.load.arrivals import Bursts, bursty, poisson
from balancer.load.workload import LoadWorkload, ModelMix, RowSizes, mixed, streams

POLICIES = (
    "round_robin",
    "least_requests",
    "wlpr",
    "power_of_two",
    "peak_ewma",
    "prequal",
    "token_bucket",
    "expected_latency",
)
"""All but `random` (round robin without the turns), `consistent_hash` (this traffic has no routing keys) and `learned`
(it needs a file that `balancer train` wrote)."""

MIX = (
    ModelMix("emulated_tft", 0.25, deadline_s=0.050),
    ModelMix("emulated_bert_distilled", 0.25, deadline_s=0.100),
    ModelMix("emulated_bert_large", 0.50, deadline_s=0.300),
)
ROWS = RowSizes((4, 8), (0.5, 0.5))
BURSTS = Bursts(factor=3.0, mean_burst_s=0.5, mean_calm_s=1.0)

RATE_PER_S = 160.0
"""Mean rate: about 0.55 of what an A100, an A30, a V100 and a T4 can do together without batching, spread by their
speed, and 1.9 times what the T4 can do of a quarter of it; a test computes both from the measured service times. Large
requests at a low rate, so that two cores carry the stack and what is measured is queues at the emulated GPUs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    policies: tuple[str, ...] = POLICIES
    rounds: int = 3
    """Each policy has one window in each round; the windows of a round have the same arrivals."""
    window_s: float = 4.0
    settle_s: float = 1.0
    """Before it: traffic flows, the policy is swapped, and nothing is counted."""
    rate_per_s: float = RATE_PER_S
    seed: int = 1

    @property
    def sending_s(self) -> float:
        """Time spent sending; waiting for the last answers of each window comes on top."""
        return self.rounds * len(self.policies) * (self.settle_s + self.window_s)


def window(plan: Plan, number: int) -> LoadWorkload:
    """The requests of every window of round `number`: Poisson while settling, then bursts.

    The bursts are levelled: their lengths are random, the expected number of requests is not.
    """
    settling, counted, models, rows = streams(plan.seed * 1_000_003 + number, 4)
    before_s = poisson(plan.rate_per_s, plan.settle_s, settling)
    after_s = bursty(plan.rate_per_s, plan.window_s, BURSTS, counted, level=True)
    time_s = np.concatenate([before_s, plan.settle_s + after_s])
    return mixed(time_s, MIX, ROWS, models, rows)


def turns(plan: Plan) -> list[tuple[int, str]]:
    """(round, policy) in order of time: each round in an order of its own, so that no policy always follows another.

    A switchback design: what drifts over minutes (temperature, neighbours, caches) hits all policies alike.
    """
    generator = np.random.default_rng([plan.seed, len(plan.policies)])
    return [
        (number, plan.policies[i]) for number in range(plan.rounds) for i in generator.permutation(len(plan.policies))
    ]
