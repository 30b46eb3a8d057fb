"""A second balancer over the workers of a stack, and an Envoy beside it: as two pods of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from balancer.config.config import load
from balancer.files.yaml_document import dump
from support.stack import Stack, merged
from support.waiting import PATIENCE_S, eventually
from tools.stack.child import Child
from tools.stack.envoyproxy import EnvoyProcess
from tools.stack.ports import free_port_range, free_ports


class Replica:
    """One more gateway. It shares the workers with the stack's own one, and nothing else."""

    def __init__(self, folder: Path) -> None:
        """Give `agent_arguments` to the stack, so that its agents report here too."""
        self._folder = folder
        reports, admin, listener, envoy_admin = free_ports(4)
        self._listen = {
            "envoy": f"127.0.0.1:{free_port_range(2)}",
            "reports": f"127.0.0.1:{reports}",
            "admin": f"127.0.0.1:{admin}",
        }
        self._envoy = {"listen": f"127.0.0.1:{listener}", "admin": f"127.0.0.1:{envoy_admin}"}
        self.agent_arguments = ("--balancer", self._listen["reports"])
        self.admin = self._listen["admin"]

    @property
    def url(self) -> str:
        """The listener, gRPC and HTTP."""
        return self.envoy.endpoint

    async def start(self, stack: Stack) -> None:
        """Start both over the stack's workers; wait until Envoy asks and all workers are ready."""
        ours = {
            "listen": self._listen,
            "envoy": self._envoy | {"shared_folder": str(self._folder / "shared"), "ready_after_listener": True},
            "discovery": {"file": str(stack.directory / "workers.yaml")},
        }
        self._envoy_arguments = stack.envoy_arguments
        self._folder.mkdir(parents=True, exist_ok=True)
        self.path = self._folder / "balancer.yaml"
        self.path.write_text(dump(merged({"policy": dict(stack.policy)}, stack.settings, ours)))
        self.config = load(self.path)
        await self.start_balancer()
        await self.start_envoy()
        await self.ready()

    async def start_balancer(self) -> None:
        """Also in place of one that has ended."""
        self.balancer = Child(["serve", "--config", str(self.path)], log_path=self._folder / "balancer.log")
        await self.balancer.start()

    async def start_envoy(self) -> None:
        """Also in place of one that has ended; it listens when this returns."""
        self.envoy = EnvoyProcess(
            options=self.config.bootstrap_options(),
            log_path=self._folder / "envoy.log",
            extra_args=self._envoy_arguments,
        )
        await self.envoy.start()
        await self.envoy.wait_ready()

    async def get(self, page: str) -> Any:
        """A JSON page of the admin interface; None where nobody answers."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{self.admin}{page}") as response:
                return await response.json()
        except aiohttp.ClientError:
            return None

    async def ready(self) -> None:
        """Wait until the balancer has heard of every worker, and Envoy asks it."""

        async def heard() -> bool:
            page, served = await self.get("/workers"), await self.get("/ready")
            return bool(page and served and served["ready"]) and all(worker["ready"] for worker in page["workers"])

        await eventually(heard, "all workers are ready for the second balancer")
        await self.envoy.wait_asks(PATIENCE_S)

    async def stop(self) -> None:
        """Stop both, whatever has been broken."""
        for part in ("envoy", "balancer"):
            if hasattr(self, part):
                await getattr(self, part).stop()


@dataclass
class Gateways:
    """Two of them over the same workers; the stack has the first."""

    stack: Stack
    second: Replica

    @property
    def url(self) -> str:
        """For a client that goes to the first, and to the second where the first does not take it."""
        return f"ipv4:{self.stack.url},{self.second.url}"

    @property
    def admins(self) -> tuple[str, str]:
        """Of the balancers."""
        return self.stack.config.admin_address(0), self.second.admin

    async def all_ready(self) -> None:
        """Wait until both balancers have heard of every worker, and are asked."""
        await self.stack.all_ready()
        await self.second.ready()
