"""A real balancer process and nothing else: the test itself speaks to its ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import psutil

from balancer.files.yaml_document import dump
from support.stack import exposed, sum_of
from support.waiting import eventually
from tools.stack.child import Child
from tools.stack.ports import free_port_range, free_ports

WORKER = {"name": "w0", "address": "10.0.0.1", "grpc_port": 8001, "http_port": 8000}
"""The only one that discovery lists. Nothing is sent there."""
_PATIENCE_S = 30.0


class BalancerAlone:
    """One process with default limits, on free ports."""

    def __init__(self, directory: Path, *, reports_required: bool = False, **sections: Any) -> None:
        """`reports_required`: it is not ready before the test reports; `sections`: more of the config."""
        self._reports_required = reports_required
        self.envoy = f"127.0.0.1:{free_port_range(2)}"
        reports, admin = free_ports(2)
        self.reports, self.admin = f"127.0.0.1:{reports}", f"127.0.0.1:{admin}"
        listen = {"envoy": self.envoy, "reports": self.reports, "admin": self.admin, **sections.pop("listen", {})}
        config = directory / "balancer.yaml"
        ours = {"listen": listen, "discovery": {"workers": [WORKER]}, "telemetry": {"required": reports_required}}
        config.write_text(dump({**ours, **sections}))
        self._child = Child(["serve", "--config", str(config)], log_path=directory / "balancer.log")

    async def start(self) -> None:
        """Return once it is ready, or would be but for reports."""
        await self._child.start()
        if self._reports_required:
            await self._child.answers(f"{self.url}/live", _PATIENCE_S)
            await eventually(self.worker, "the worker is listed")
        else:
            await self._child.answers(f"{self.url}/ready", _PATIENCE_S)

    async def stop(self) -> None:
        """End it."""
        await self._child.stop()

    @property
    def url(self) -> str:
        """Of the admin pages."""
        return f"http://{self.admin}"

    @property
    def log_path(self) -> Path:
        """Of the process."""
        return self._child.log_path

    @property
    def process(self) -> psutil.Process:
        """What the system knows of it."""
        return psutil.Process(self._child.process.pid)

    def resident_bytes(self) -> int:
        """Of the process."""
        return int(self.process.memory_info().rss)

    async def worker(self) -> Any:
        """What is known of the worker; None before discovery has listed it."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/workers") as response:
            return next(iter((await response.json())["workers"]), None)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have the labels, now or later."""
        return sum_of(await exposed(self.url), name, **labels)
