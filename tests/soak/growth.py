"""Resident memory and descriptors of the parts over a soak, and whether they grow."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil
from scipy import stats

from soak.deployment import Deployment
from soak.load import Load

WATCHED = ("balancer", "envoy", "worker-0-agent")
_EVERY_S = 1.0
_WARM_UP = 0.4
"""Of the samples of a process, left out: a heap grows to the size that the worst kind of fault needs, and stays."""
_LEAST_SAMPLES = 20
_MOST_MB_PER_MILLION = 1.0
_SPARE_DESCRIPTORS = 6.0
"""Connections that come and go by themselves; one that leaks would show by the thousand."""


@dataclass(frozen=True)
class Sample:
    at_s: float
    requests: int
    """Ended until then."""
    pid: int
    resident_mb: float
    descriptors: int
    allocated_mb: float | None
    """Of Envoy: what it holds. Its allocator keeps more: what a burst of large requests has left free."""


@dataclass
class Sampler:
    """Takes samples until it is cancelled."""

    deployment: Deployment
    load: Load
    samples: dict[str, list[Sample]] = field(default_factory=lambda: {name: [] for name in WATCHED})

    async def run(self) -> None:
        while True:
            allocated = await self.deployment.envoy_allocated_bytes()
            for name, part in self.deployment.parts().items():
                if name in WATCHED and part.process.returncode is None:
                    self._take(name, part.process.pid, allocated if name == "envoy" else None)
            await asyncio.sleep(_EVERY_S)

    def _take(self, name: str, pid: int, allocated: int | None) -> None:
        try:
            process = psutil.Process(pid)
            memory, descriptors = process.memory_info().rss, process.num_fds()
        except psutil.Error:
            return
        allocated_mb = None if allocated is None else allocated / 1e6
        self.samples[name].append(Sample(time.time(), self.load.done, pid, memory / 1e6, descriptors, allocated_mb))


def growth(samples: Mapping[str, Sequence[Sample]]) -> dict[str, dict[str, float]]:
    """By part, of the last process that it was: megabytes per million requests, and descriptors more than before."""
    found = {}
    for part, of_part in samples.items():
        last = [sample for sample in of_part if sample.pid == of_part[-1].pid]
        last = last[int(len(last) * _WARM_UP) :]
        if len(last) >= _LEAST_SAMPLES:
            tenth = max(len(last) // 10, 3)
            descriptors = [sample.descriptors for sample in last]
            found[part] = {
                "requests": last[-1].requests - last[0].requests,
                "resident_mb": last[-1].resident_mb,
                "resident_mb_per_million": _slope([(each.requests, each.resident_mb) for each in last]),
                "descriptors_more": float(np.median(descriptors[-tenth:]) - np.median(descriptors[:tenth])),
            }
            known = [(each.requests, each.allocated_mb) for each in last if each.allocated_mb is not None]
            if len(known) >= _LEAST_SAMPLES:
                found[part]["allocated_mb_per_million"] = _slope(known)
    return found


def beyond(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What grew more than it may, in words."""
    limits = {
        "resident_mb_per_million": _MOST_MB_PER_MILLION,
        "allocated_mb_per_million": _MOST_MB_PER_MILLION,
        "descriptors_more": _SPARE_DESCRIPTORS,
    }
    return [
        f"{part}: {name} is {value:.2f}, more than {limits[name]:g}"
        for part, values in found.items()
        for name, value in values.items()
        if value > limits.get(name, np.inf)
    ]


def _slope(held: Sequence[tuple[int, float]]) -> float:
    """A million requests; the median of all slopes between two samples (Theil and Sen): single ones jump with what is
    in flight."""
    requests, held_mb = np.array(held, float).T
    return float(stats.theilslopes(held_mb, requests).slope) * 1e6
