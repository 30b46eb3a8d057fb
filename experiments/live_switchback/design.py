"""How the run is laid out: blocks, windows and the weights of workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from balancer.config.profile_file import Profile
from experiments.live_fidelity.session import Session
from tools.demo import traffic

POLICIES = ("wlpr", "expected_latency", "learned")
"""The last is held against each of the others."""

DESIGN = Session(
    policies=POLICIES,
    rounds=15,
    window_s=6.0,
    settle_s=2.0,
    # An SRE does not stop the traffic to swap a policy.
    pause_s=0.0,
    rate_per_s=240.0,
    sessions=60,
    cache_keys=1024,
    cache_saving=0.5,
)
"""A round is a block: one window of each policy, in an order drawn for the block, under the same arrivals. Many short
windows rather than few long ones: blocks are what the intervals rest on, and 2 s empty most queues. More traffic than
the demo's, where nearly all is in time whoever picks. Requests come in sessions, of whose prefix the emulated GPUs
remember more than the run has at any moment: who is sent where it was before takes 50% less."""

QUICK = replace(DESIGN, rounds=3, window_s=3.0, settle_s=1.0)
"""To see that all of it works; its intervals say nothing."""


def capacity_weights(profiles: Mapping[str, Profile]) -> dict[str, float]:
    """Weight of each worker, by name: requests of the traffic a second, one at a time, relative to the mean worker.

    What an SRE who measured the GPUs would write into the list of workers: `wlpr` is only as good as its weights.
    """
    speeds = {worker: 1 / _service_s(profile) for worker, profile in profiles.items()}
    mean = float(np.mean(list(speeds.values())))
    return {worker: round(speed / mean, 3) for worker, speed in speeds.items()}


def _service_s(profile: Profile) -> float:
    """Mean time that a request of the traffic takes alone."""
    models = {model.model: model.points for model in profile.models}
    weights = sum(mix.weight for mix in traffic.MIX)
    total_s = 0.0
    for mix in traffic.MIX:
        points = models[mix.name]
        each_s = np.interp(traffic.ROWS.values, [p.rows for p in points], [p.mean_s for p in points])
        total_s += mix.weight / weights * float(each_s @ np.array(traffic.ROWS.shares))
    return total_s
