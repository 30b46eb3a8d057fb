"""`balancer up` as a child process, its config file, and its admin interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from balancer.errors import OperatorError
from balancer.files.yaml_document import dump
from tools.stack.ports import free_ports

_T = TypeVar("_T")

_POLL_S = 0.02
_FIRST_MODEL = "digits"
_READY_TIMEOUT_S = 120.0
_SWAP_TIMEOUT_S = 5.0
_STOP_TIMEOUT_S = 20.0
_LOG_LINES = 20


class DemoError(OperatorError):
    """The demo cannot go on; the message says which part failed and what it said."""


class DemoStack:
    """The whole stack, as a context: started and ready within, stopped after, whatever happens."""

    def __init__(
        self,
        directory: pathlib.Path,
        workers: int,
        policy: str,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`directory` gets the config file and the log.

        Args:
            directory: Is there.
            workers: How many Tritons.
            policy: In force at first.
            settings: Sections of the config beside the policy's; else those of `balancer up`.
            environment: Added to this process's, for all parts.
        """
        self.workers = workers
        self._settings = dict(settings or {})
        self._environment = dict(environment or {})
        self.port, self._admin_port = free_ports(2)
        self.config_path = directory / "balancer.yaml"
        self.log_path = directory / "stack.log"
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        write_policy(self.config_path, policy, self._settings)

    @property
    def url(self) -> str:
        """Listener, host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        """What is run."""
        program = str(pathlib.Path(sys.executable).with_name("balancer"))
        options = {"workers": self.workers, "port": self.port, "admin-port": self._admin_port}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [
            program,
            "up",
            *arguments,
            "--config",
            str(self.config_path),
            "--run-dir",
            str(self.config_path.parent / "run"),
        ]

    async def __aenter__(self) -> Self:
        """Start, and return when all is ready; raises `DemoError` with the end of the log where it does not get so."""
        # If this process is killed outright, the kernel still tells the stack to stop (setpriv is util-linux).
        guard = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *guard,
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                # A session of its own: Ctrl-C reaches this program alone, which then stops the stack in order.
                start_new_session=True,
                env=os.environ | self._environment,
            )
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2))
        try:
            await self._until_ready(_FIRST_MODEL)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    async def _until_ready(self, model: str) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._process.returncode is not None:
                raise DemoError(f"`balancer up` ended with {self._process.returncode}; {self.log_tail()}")
            # Refused until the admin interface listens, and nothing announces that: ask again.
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                status, _ = await self._get("/ready")
                if status == 200 and await self._listener_serves(model):
                    return
            await asyncio.sleep(_POLL_S)
        raise DemoError(f"`balancer up` was not ready after {_READY_TIMEOUT_S:.0f} s; {self.log_tail()}")

    async def _listener_serves(self, model: str) -> bool:
        # The balancer is ready on its own; Envoy learns the workers from it a moment later.
        assert self._session is not None
        async with self._session.get(f"http://{self.url}/v2/models/{model}/ready") as response:
            return response.status == 200

    async def swap(self, policy: str) -> float:
        """Name the policy in the config file, and return the seconds until it was in force.

        Raises:
            DemoError: where that takes too long, with what the balancer says of the file.
        """
        began_s = time.monotonic()
        write_policy(self.config_path, policy, self._settings)
        while time.monotonic() < began_s + _SWAP_TIMEOUT_S:
            if (await self.workers_now())["policy"] == policy:
                return time.monotonic() - began_s
            await asyncio.sleep(_POLL_S)
        _, config = await self._get("/config")
        raise DemoError(
            f"policy {policy} was not in force {_SWAP_TIMEOUT_S:.0f} s after {self.config_path} was written; "
            f"/config says {json.dumps(config.get('last_error'))}; {self.log_tail()}"
        )

    async def workers_now(self) -> dict[str, Any]:
        """What `/workers` shows: the policy in force and the fleet."""
        return await self._page("/workers")

    async def decisions_now(self) -> dict[str, float]:
        """How many requests each policy has decided so far, by name: a guard's baseline counts for itself."""
        return dict((await self._page("/recent"))["decisions"])

    async def _page(self, path: str) -> dict[str, Any]:
        try:
            return (await self._get(path))[1]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"the balancer's admin interface does not answer: {error!r}; {self.log_tail()}") from error

    async def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        assert self._session is not None
        async with self._session.get(f"http://127.0.0.1:{self._admin_port}{path}") as response:
            return response.status, await response.json()

    def check(self) -> None:
        """Raise `DemoError` where the stack has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise DemoError(f"`balancer up` ended with {self._process.returncode}; {self.log_tail()}")

    async def stop(self) -> None:
        """Ask the stack to stop, and kill it where it does not."""
        if self._session is not None:
            await self._session.close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def log_tail(self) -> str:
        """The end of the stack's log, for messages."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if self.log_path.exists() else []
        return "\n".join([f"its log ({self.log_path}) ends:", *lines])


async def interruptible(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, or until Ctrl-C or SIGTERM cancels it, so that contexts are left in order."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def write_policy(path: pathlib.Path, policy: str, settings: Mapping[str, Any] | None = None) -> None:
    """Put a config that names the policy, with these sections, in place of the file, at once: no reader sees half."""
    draft = path.with_name(path.name + ".new")
    comment = "# Written by the demo, which swaps the policy while traffic flows."
    draft.write_text(f"{comment}\n{dump({'policy': {'name': policy}, **(settings or {})})}")
    os.replace(draft, path)
