"""A real Envoy between fake workers and all of the balancer that picks and counts, by either front end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from balancer.extproc.kserve import HeaderNames
from balancer.extproc.pick_service import ExternalProcessor
from balancer.extproc.picker import Addresses, Picker
from balancer.kernel.settings import SplitSettings
from balancer.server.metrics import Metrics
from balancer.server.native.front import NativeFront
from balancer.server.recorder import Recorder
from support.envoy_fakes import EXT_PROC, a_request
from support.exposition import Samples, counted
from support.native import NativeRig
from support.waiting import PATIENCE_S


class _Later(grpc.GenericRpcHandler):
    """The rig's picks, once it has them."""

    def __init__(self, rig: BothFronts) -> None:
        self._rig = rig

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if not handler_call_details.method.startswith(f"/{EXT_PROC}/"):
            return None
        return self._rig.processor.handler().service(handler_call_details)


class _Listening:
    """Likewise, whom the access log tells."""

    def __init__(self, rig: BothFronts) -> None:
        self._rig = rig

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rig.recorder, name)


@dataclass
class BothFronts(NativeRig):
    """`NativeRig`, whose router also picks where the module is told to ask."""

    native: bool = True
    audited: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.balancer.picks = _Later(self)
        self.balancer.listener = _Listening(self)  # type: ignore[assignment]  # by whatever the recorder has

    def begin(self) -> None:
        super().begin()
        self.hold_beats()
        listed = [worker.spec for worker in self.workers]
        picker = self.picker = Picker(self.router, time.monotonic, for_logs=self.audited)
        picker.addresses = Addresses(listed)
        self.metrics = Metrics(self.router, time.monotonic)
        self.recorder = Recorder(self.router, picker, self.metrics, time.monotonic)
        self.recorder.recent._window_s = math.inf  # all that a test has sent is recent, however slow the machine
        self.processor = ExternalProcessor(picker, self.recorder, lambda: True)
        self.front = NativeFront(self.router, self.metrics, self.recorder)
        self.front.workers(listed)
        self.go_on_beating()

    async def _beat(self) -> None:
        never = asyncio.Event()
        await self.front.run(never, time.monotonic, lambda: self.native, lambda: True)

    def split(self, models: Mapping[str, SplitSettings]) -> None:
        """From now on two versions of these share the requests."""
        self.recorder.splits.configure(models)
        self.router.tick(time.monotonic())

    async def decides(self) -> bool:
        """Whether who is to decide does; it sends a request for another model."""
        how = "picked" if self.native else "left_to_balancer"
        before = self.router.state.counts()[how]
        await self.stub.ModelInfer(a_request("warm"), timeout=PATIENCE_S)
        return self.router.state.counts()[how] > before

    def log_lines(self, share: float) -> None:
        """Of decisions, in the log."""
        self.recorder.decision_lines.share = share
        self.front.configure(HeaderNames(), share)

    def samples(self, name: str) -> Samples:
        """Of a metric, without those that are 0."""
        return counted(self.metrics, name)
