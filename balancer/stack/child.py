"""A process of ours beside this one: started, watched and stopped by its own handle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LOG_TAIL_LINES = 15


@dataclass(slots=True)
class Child:
    """`balancer ARGUMENTS` as a process of its own, in this environment."""

    arguments: Sequence[str]
    log_path: Path
    """Standard output and error are appended there."""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False, repr=False)

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The running (or ended) process; RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError(f"balancer {self.arguments[0]} was not started; await start() first")
        return self._process

    async def start(self) -> None:
        """Spawn it."""
        # setpriv (util-linux, on every Debian) asks the kernel to end it when we die, however we die.
        guard = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *guard,
                sys.executable,
                *("-m", "balancer", *self.arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                # Its own group: Ctrl-C in a terminal reaches us alone, and we stop it in our order.
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Return the exit status once it has ended (negative: the signal that ended it)."""
        return await self.process.wait()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ask it to end, wait for that up to `grace_s`, then kill it and its children. Harmless if it has ended."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        await self.kill()

    async def kill(self) -> None:
        """End it and its children at once."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def log_tail(self) -> str:
        """The end of its log, introduced."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([f"its log ({self.log_path}) ends:", *lines])
