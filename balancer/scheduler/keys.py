"""Requests with a key: who places them."""

import math

from policies.base import Policy
from policies.consistent_hash import ConsistentHash

STICKY = ConsistentHash(balance_factor=2.0, floor=16.0)
"""Places keyed requests. A key moves only from a worker with twice its share, and enough to fill a batch or two."""
OF_SEQUENCES = ConsistentHash(balance_factor=math.inf)
"""Places sequences: whatever the load, at one worker."""


def placing(policy: Policy, keyed: bool, sticky_keys: bool, sequence: bool = False) -> Policy:
    """The policy, unless a hash places the request's key; `sticky_keys` as configured."""
    if not keyed:
        return policy
    if sequence:
        return OF_SEQUENCES
    return STICKY if sticky_keys and not policy.needs_key else policy
