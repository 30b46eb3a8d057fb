"""Policies: pure functions from a view of the fleet to a probability for each worker (see README.md)."""

from policies.base import Policy
from policies.cache_aware import CacheAware
from policies.consistent_hash import ConsistentHash
from policies.expected_latency import ExpectedLatency
from policies.learned import Learned
from policies.least_requests import LeastRequests
from policies.least_tokens import LeastTokens
from policies.peak_ewma import PeakEwma
from policies.power_of_two import PowerOfTwo
from policies.prefix_load_cost import PrefixLoadCost
from policies.prefix_score import PrefixScore
from policies.prequal import Prequal
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin
from policies.token_bucket import TokenBucket
from policies.wlpr import WeightedLeastPending

_POLICIES: tuple[type[Policy], ...] = (
    RandomChoice,
    RoundRobin,
    LeastRequests,
    WeightedLeastPending,
    TokenBucket,
    ConsistentHash,
    PowerOfTwo,
    PeakEwma,
    Prequal,
    ExpectedLatency,
    LeastTokens,
    CacheAware,
    PrefixScore,
    PrefixLoadCost,
    Learned,
)

BUILTIN: dict[str, type[Policy]] = {policy.name: policy for policy in _POLICIES}
"""The policies that come with the balancer, by the name that config files use."""

__all__ = ["BUILTIN", "Policy"]
