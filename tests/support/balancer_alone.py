"""A real balancer process and nothing else: the test itself speaks to its ports."""

from pathlib import Path
from typing import Any

import psutil

from balancer.discovery.workers import WorkerSpec
from balancer.stack.stack import OwnStack
from support.waiting import PATIENCE_S, eventually

WORKER = {"name": "w0", "address": "10.0.0.1", "grpc_port": 8001, "http_port": 8000}
"""The only one that discovery lists. Nothing is sent there."""


class BalancerAlone:
    """One process with default limits, on free ports."""

    def __init__(self, directory: Path, *, reports_required: bool = False, **sections: Any) -> None:
        """`reports_required`: it is not ready before the test reports; `sections`: more of the config."""
        self._reports_required = reports_required
        self._stack = OwnStack(directory, listed=[WorkerSpec.model_validate(WORKER)])
        listen = self._stack.addresses["listen"] | sections.pop("listen", {})
        # No Envoy, so none that it could wait for.
        ours = {"listen": listen, "envoy": {}, "telemetry": {"required": reports_required}}
        self._stack.addresses = {**self._stack.addresses, **ours, **sections}
        self.envoy, self.reports, self.admin = (listen[name] for name in ("envoy", "reports", "admin"))
        self.log_path = self._stack.log_path
        self.url = f"http://{self.admin}"
        """Of the admin pages."""

    async def start(self) -> None:
        """Return once it is ready, or would be but for reports."""
        await self.spawn()
        if self._reports_required:
            await self._stack.balancer.answers(f"{self.url}/live", PATIENCE_S)
            await eventually(self.worker, "the worker is listed")
        else:
            await self._stack.balancer.answers(f"{self.url}/ready", PATIENCE_S)

    async def spawn(self) -> None:
        """Start it and wait for nothing."""
        self._stack.prepare()
        await self._stack.start_balancer()

    async def stop(self) -> None:
        """End it."""
        await self._stack.stop()

    @property
    def process(self) -> psutil.Process:
        """What the system knows of it."""
        return psutil.Process(self._stack.balancer.process.pid)

    def resident_bytes(self) -> int:
        """Of the process."""
        return int(self.process.memory_info().rss)

    async def worker(self) -> Any:
        """What is known of the worker; None before discovery has listed it."""
        return next(iter((await self._stack.get("/workers"))["workers"]), None)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have the labels, now or later."""
        return await self._stack.metric(name, **labels)
