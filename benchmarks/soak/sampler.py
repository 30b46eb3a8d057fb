"""Memory, descriptors and progress of a deployment, once a second."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import psutil

from benchmarks.soak.client import Load
from benchmarks.soak.deployment import Deployment

_EVERY_S = 1.0


@dataclass(frozen=True)
class Sample:
    """One process at one moment."""

    at_s: float
    requests: int
    """Ended until then."""
    part: str
    pid: int
    rss_bytes: int
    descriptors: int
    allocated_bytes: int | None = None
    """Of Envoy: what it holds. Its allocator keeps more: what a burst of large requests has left free."""


@dataclass
class Sampler:
    """Takes samples until it is cancelled."""

    deployment: Deployment
    load: Load
    samples: list[Sample] = field(default_factory=list)

    async def run(self) -> None:
        """For ever."""
        while True:
            allocated_bytes = await self.deployment.envoy_allocated_bytes()
            for name, part in self.deployment.parts().items():
                if part.process.returncode is None:
                    self._take(name, part.process.pid, allocated_bytes if name == "envoy" else None)
            await asyncio.sleep(_EVERY_S)

    def _take(self, name: str, pid: int, allocated_bytes: int | None) -> None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                memory, descriptors = process.memory_info().rss, process.num_fds()
        except psutil.Error:
            return
        self.samples.append(Sample(time.time(), self.load.done, name, pid, int(memory), descriptors, allocated_bytes))
