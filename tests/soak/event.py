"""A fault as it happens: when, where, and what is waited for until all is as before."""

import asyncio
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from soak.deployment import Deployment, until
from soak.load import Load

_START_S = 60.0
_TRIED_AGAIN_S = 90.0
"""A worker whose requests failed in numbers is tried again once its error rate has faded."""
_STALE_S = 0.5


@dataclass
class Event:
    kind: str
    target: str
    """The worker that it concerns; empty: none."""
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
    details: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    """What did not happen in time; empty: all did."""

    def noticed(self) -> None:
        self.noticed_s = self.noticed_s or time.time()

    def mended(self) -> None:
        self.mended_s = time.time()


@dataclass
class Site:
    """Where a fault happens."""

    deployment: Deployment
    load: Load
    rng: Random
    event: Event
    number: int
    """Of the worker that it concerns."""

    @property
    def name(self) -> str:
        return self.deployment.names[self.number]

    async def pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    async def left_out(self) -> None:
        """Wait until the balancer sends the worker nothing."""
        await until(lambda: self.deployment.why_not(self.name), f"{self.name} is left out")
        self.event.noticed()

    async def answers(self) -> None:
        """All is mended: wait until the worker answers honest requests again, picked by the balancer."""
        self.event.mended()

        async def used() -> bool:
            return not await self.deployment.why_not(self.name)

        await until(used, f"{self.name} may be picked")
        self.event.recovered_s = time.time()
        served = self.load.by_worker[self.name]

        async def serves() -> bool:
            return self.load.by_worker[self.name] > served

        await until(serves, f"{self.name} answers", patience_s=_TRIED_AGAIN_S)

    async def picks(self) -> None:
        """All is mended: wait until Envoy gets answers of the balancer."""
        self.event.mended()
        before = await self.deployment.answered()

        async def more() -> bool:
            return await self.deployment.answered() > before

        await until(more, "Envoy gets answers of the balancer", patience_s=_START_S)
        self.event.recovered_s = time.time()

    async def reports(self, fresh: bool) -> None:
        """Wait until the reports of all workers are fresh, or all old."""

        async def so() -> bool:
            ages = [(await self.deployment.worker(name)).get("report_age_s") for name in self.deployment.names]
            return all((age is not None and age < _STALE_S) is fresh for age in ages)

        await until(so, f"every report is {'fresh' if fresh else 'old'}")
