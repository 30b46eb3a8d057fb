"""Which fault comes when: drawn from a seed, at most two at once, never two that break the same part."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from balancer.stack.stack import READY_S
from soak.deployment import Deployment
from soak.event import Event, Site
from soak.faults import Fault
from soak.load import Load

CRASHED = "Triton ended by itself"
_PAUSE_S = (0.5, 2.0)
_SECOND_PAUSE_S = (3.0, 12.0)
"""Between the faults of the second line, which overlap those of the first."""
_LOOK_S = 0.2
_WATCHED_AGENT = 0
"""The worker whose agent is not ended in the last part, so that its memory can be watched."""


@dataclass
class Schedule:
    """Breaks a deployment until it is stopped."""

    deployment: Deployment
    load: Load
    faults: Sequence[Fault]
    seed: int
    say: Callable[[str], None]
    gentle_from: float
    """From this share of the requests on, no process whose memory is watched is ended."""
    events: list[Event] = field(default_factory=list)
    _busy: set[str] = field(default_factory=set, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def stop(self) -> None:
        """Begin no more; those under way are mended first."""
        self._stopping.set()

    async def run(self) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.gather(
                self._line(Random(self.seed), _PAUSE_S, list(self.faults)),
                self._line(Random(self.seed + 1), _SECOND_PAUSE_S, []),
            )
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        """Start Tritons anew that ended though nobody ended them: some calls that are given up make this one crash."""
        while True:
            for number, triton in enumerate(self.deployment.tritons):
                if triton.process.returncode is None or triton.name in self._busy:
                    continue
                self._busy.add(triton.name)
                now_s = time.time()
                event = Event(CRASHED, triton.name, now_s, killed=[(triton.name, now_s)])
                self.events.append(event)
                self.say(f"  {triton.called} ended by itself with status {triton.process.returncode}")
                await triton.kill()
                await self.deployment.start_triton(number)
                await self.deployment.tritons[number].wait_ready(READY_S)
                event.recovered_s = time.time()
                self._busy.discard(triton.name)
            await asyncio.sleep(_LOOK_S)

    async def _line(self, rng: Random, pause_s: tuple[float, float], first: list[Fault]) -> None:
        """One fault after the other: each of `first` once, then any."""
        rng.shuffle(first)
        while not await self._stopped_within(rng.uniform(*pause_s)):
            fault = first.pop() if first else rng.choice(self.faults)
            number = rng.randrange(len(self.deployment.names))
            if not self._allowed(fault, number):
                continue
            parts = self._parts(fault, number)
            # Broken by the other line at the moment; it is soon over.
            while parts & self._busy:
                if await self._stopped_within(0.1):
                    return
            self._busy |= parts
            try:
                await self._happen(fault, number, Random(rng.random()))
            finally:
                self._busy -= parts

    async def _happen(self, fault: Fault, number: int, rng: Random) -> None:
        target = self.deployment.names[number] if fault.part == "worker" else ""
        event = Event(fault.name, target, time.time())
        self.events.append(event)
        try:
            await fault.happen(Site(self.deployment, self.load, rng, event, number))
        except AssertionError as error:
            event.failed = str(error)
            self.say(f"  {fault.name} {target}: {error}")
        event.recovered_s = event.recovered_s or time.time()

    def _allowed(self, fault: Fault, number: int) -> bool:
        if self.load.done < self.gentle_from * self.load.most:
            return True
        return not fault.restarts or (fault.restarts == "agent" and number != _WATCHED_AGENT)

    def _parts(self, fault: Fault, number: int) -> set[str]:
        """What a fault breaks: a balancer that is gone takes no config."""
        names = self.deployment.names
        broken = {"worker": {names[number]}, "workers": {*names}, "": set[str]()}
        broken["balancer"] = broken["config"] = {"balancer"}
        return broken.get(fault.part, {fault.part})

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True
