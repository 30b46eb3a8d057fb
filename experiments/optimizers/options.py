"""The numbers of `expected_latency` that are tuned, as coordinates around 0 to 1 that a search may turn freely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from policies.base import FloatArray
from policies.expected_latency import ExpectedLatency


@dataclass(frozen=True, slots=True)
class Scale:
    """What a coordinate of 0 to 1 stands for; below and above is the same as at these ends."""

    least: float
    """At 0; on a log scale just above it, for at 0 itself the value is 0."""
    most: float
    log: bool = True

    def value(self, coordinate: float) -> float:
        """Of the option."""
        share = min(max(coordinate, 0.0), 1.0)
        if not self.log:
            return self.least + share * (self.most - self.least)
        return min(self.least * (self.most / self.least) ** share, self.most) if share > 0 else 0.0

    def coordinate(self, value: float) -> float:
        """Of a value; the nearest there is."""
        if not self.log:
            return min(max((value - self.least) / (self.most - self.least), 0.0), 1.0)
        return min(max(float(np.log(value / self.least) / np.log(self.most / self.least)), 0.0), 1.0) if value else 0.0


SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        "temperature": Scale(0.001, 0.2),
        "delayed_share": Scale(0.02, 2.0),
        "delayed_share_other_models": Scale(0.05, 5.0),
        "behind_share": Scale(0.0, 1.0, log=False),
        "saving_factor": Scale(0.5, 128.0),
        "error_penalty_s": Scale(0.05, 20.0),
    }
)
"""By option. At the least of a log scale the option makes next to no difference any more, so 0 is no jump."""


def policy_at(coordinates: FloatArray) -> ExpectedLatency:
    """With the options that the coordinates stand for, in the order of `SCALES`."""
    values = {name: scale.value(float(each)) for (name, scale), each in zip(SCALES.items(), coordinates, strict=True)}
    return ExpectedLatency(**values)


def coordinates_of(policy: ExpectedLatency) -> FloatArray:
    """Of the options of a policy."""
    return np.array([scale.coordinate(getattr(policy, name)) for name, scale in SCALES.items()])
