"""A real Envoy that decides by itself, over the state of a router in this process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from balancer.bootstrap.native import NativeOptions
from balancer.extproc.kserve import HeaderNames
from balancer.kernel.compiled.library import PATH, Library
from balancer.kernel.settings import Settings
from balancer.native import envoy_module as module
from balancer.native import state
from balancer.native.layouts import OUTCOME
from balancer.native.router import SharedRouter
from balancer.native.state import Folder
from balancer.scheduler.events import WorkerAdded
from policies import BUILTIN
from policies.base import Policy
from support.envoy_fakes import FakeBalancer, Rig, go_on
from support.waiting import eventually

BEAT_S = 0.01
PATIENT_S = 10.0
"""The most that the module takes; longer than this process, which gives the signs of life beside all else, is ever kept
from it."""
TABLE = Settings(reports_required=False)
"""Workers are taken at their word, so that no agent has to report."""


@dataclass
class NativeRig(Rig):
    """`Rig`, whose workers a router in this process knows."""

    policy: Policy = field(default_factory=BUILTIN["round_robin"])
    settings: Settings = TABLE
    stale_after_s: float = PATIENT_S
    hung_after_s: float = PATIENT_S
    gives_up: bool = False
    """Whether requests that wait for their clients lose their places, as with the balancer's own process."""
    outcomes: list[npt.NDArray[Any]] = field(default_factory=list)
    _taken: Folder | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.folder = self.directory / "shared"
        self.options = dataclasses.replace(self.options, native=NativeOptions(module.PATH, PATH, self.folder))

    @property
    def balancer(self) -> FakeBalancer:
        """Whom Envoy asks."""
        return self.balancers[0]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[NativeRig]:
        """As `Rig.running`, with a balancer alive."""
        self.balancer.respond = lambda _: go_on()
        async with super().running():
            with patch.multiple(state, STALE_AFTER_S=self.stale_after_s, HUNG_AFTER_S=self.hung_after_s):
                self.begin()
                try:
                    yield self
                finally:
                    self.die()

    def begin(self) -> None:
        """A balancer that begins with nothing but the list of workers."""
        library = Library()
        taken = self._taken = Folder(self.folder)
        self.router = SharedRouter(self.policy, self.settings, 7, library, module.Module(library), taken)
        for worker in self.workers:
            self.router.observe(WorkerAdded(worker.name), time.monotonic())
        self.router.list_endpoints(
            {
                "grpc": {worker.name: worker.grpc_endpoint for worker in self.workers},
                "http": {worker.name: worker.http_endpoint for worker in self.workers},
            }
        )
        self.router.read_headers(HeaderNames())
        self.router.serve(True)
        self._beats = asyncio.create_task(self._beat())

    def die(self) -> None:
        """Without a word, as when it is killed."""
        self.hold_beats()
        if self._taken is not None:
            self.router.state.close()
            self._taken.close()
        self._taken = None

    def hold_beats(self) -> None:
        """It is stopped, or kept from its core."""
        self._beats.cancel()

    def go_on_beating(self) -> None:
        """It is continued."""
        self._beats = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            self.router.state.beat()
            if self.gives_up:
                self.router.give_up_waiting(time.monotonic())
            await asyncio.sleep(BEAT_S)

    async def picks(self) -> bool:
        """Whether Envoy decides a request by the state; it sends one."""
        return await self._counts("picked")

    async def does_without(self) -> bool:
        """Whether Envoy takes the balancer for dead; it sends a request."""
        return await self._counts("least_stale")

    async def _counts(self, what: str) -> bool:
        before = self.router.state.counts()[what]
        await self.infer()
        return self.router.state.counts()[what] > before

    async def all_ended(self) -> None:
        """Return once Envoy has counted all out, which it does after the client has its answer."""
        await eventually(self._has_ended)

    def _has_ended(self) -> bool:
        # Under the lock, so that nobody is seen halfway.
        assert self.router.state.lock()
        try:
            return not self.router.state.in_flight and not self.router.fleet.queue.in_flight.any()
        finally:
            self.router.state.unlock()

    def all_outcomes(self) -> npt.NDArray[Any]:
        """All outcomes so far."""
        self.outcomes += [batch.copy() for batch in self.router.state.outcomes()]
        return np.concatenate(self.outcomes) if self.outcomes else np.zeros(0, OUTCOME)
