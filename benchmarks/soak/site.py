"""What a fault is given: the deployment, a generator, and a record of how it went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.soak.client import Load
from benchmarks.soak.deployment import Deployment, until

_START_S = 60.0
_TRIED_AGAIN_S = 90.0
"""A worker whose requests failed in numbers is tried again once its error rate has faded."""


@dataclass
class Event:
    """One fault, as it went."""

    kind: str
    target: str
    began_s: float
    """Seconds since the epoch, as all times here."""
    noticed_s: float | None = None
    """When somebody in the deployment knew of it."""
    mended_s: float | None = None
    """When what caused it was undone."""
    recovered_s: float | None = None
    """When all was as before: what was broken takes part again."""
    killed: list[tuple[str, float]] = field(default_factory=list)
    """Parts that were ended without warning, and when."""
    down: list[tuple[str, float, float]] = field(default_factory=list)
    """Parts that were not there, from and to."""
    said: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    """What did not happen in time; empty: all did."""

    def noticed(self) -> None:
        """Now, unless it was before."""
        self.noticed_s = self.noticed_s or time.time()

    def mended(self) -> None:
        """Now."""
        self.mended_s = time.time()


@dataclass
class Site:
    """What a fault may use."""

    deployment: Deployment
    load: Load
    rng: Random
    event: Event
    number: int
    """Of the worker that it concerns."""

    @property
    def name(self) -> str:
        """Of that worker."""
        return self.deployment.names[self.number]

    def span(self, least_s: float, most_s: float) -> float:
        """Some seconds."""
        return self.rng.uniform(least_s, most_s)

    async def left_out(self) -> None:
        """Wait until the balancer sends the worker nothing."""
        await until(lambda: self.deployment.why_not(self.name), f"{self.name} is left out")
        self.event.noticed()
        self.event.said["why"] = await self.deployment.why_not(self.name)

    async def answers(self) -> None:
        """Wait until the worker answers honest requests again, picked by the balancer."""

        async def used() -> bool:
            return not await self.deployment.why_not(self.name)

        await until(used, f"{self.name} may be picked")
        self.event.recovered_s = time.time()
        served = self.load.by_worker[self.name.encode()]

        async def serves() -> bool:
            return self.load.by_worker[self.name.encode()] > served

        await until(serves, f"{self.name} answers", _TRIED_AGAIN_S)
        self.event.said["answers_after_s"] = round(time.time() - self.event.recovered_s, 3)

    async def picks(self) -> None:
        """Wait until Envoy gets answers of the balancer."""
        before = await self.deployment.answered()

        async def more() -> bool:
            return await self.deployment.answered() > before

        await until(more, "Envoy gets answers of the balancer", _START_S)
