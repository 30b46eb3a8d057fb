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


@dataclass
class Sampler:
    """Takes samples until it is cancelled."""

    deployment: Deployment
    load: Load
    samples: list[Sample] = field(default_factory=list)

    async def run(self) -> None:
        """For ever."""
        while True:
            for name, part in self.deployment.parts().items():
                if part.process.returncode is None:
                    self._take(name, part.process.pid)
            await asyncio.sleep(_EVERY_S)

    def _take(self, name: str, pid: int) -> None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                memory, descriptors = process.memory_info().rss, process.num_fds()
        except psutil.Error:
            return
        self.samples.append(Sample(time.time(), self.load.done, name, pid, int(memory), descriptors))
