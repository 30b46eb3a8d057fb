"""A process on this machine: started, watched and stopped by its own handle."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

import aiohttp

from balancer.errors import OperatorError

_READY_POLL_S = 0.05
_LOG_TAIL_LINES = 15


class ProcessExitedError(OperatorError):
    """A process ended, or did not become ready; the message carries what its log says."""


@dataclass(slots=True, kw_only=True)
class LocalProcess(ABC):
    """One process. Start it from a thread that lives as long as the process may.

    The kernel ends the process when that thread ends, so none is left behind if this one is killed.
    """

    title: ClassVar[str]
    exited: ClassVar[type[ProcessExitedError]] = ProcessExitedError
    log_path: Path
    """Standard output and error are appended there."""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False, repr=False)
    _log_start: int = field(default=0, init=False, repr=False)
    """Where this run's part of the log begins: earlier ones end with reasons of their own."""

    @abstractmethod
    async def start(self) -> None:
        """Spawn it; it is not ready yet when this returns."""

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The running (or ended) process; RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError(f"{self.called} was not started; await start() first")
        return self._process

    @property
    def started(self) -> bool:
        """Whether it was started; it may have ended since."""
        return self._process is not None

    @property
    def called(self) -> str:
        return self.title

    def _check_not_started(self) -> None:
        if self._process is not None:
            raise RuntimeError(f"{self.called} was started before; make a new one to start it again")

    async def _spawn(
        self, *command: str, at_our_end: Literal["KILL", "TERM"] = "KILL", environment: Mapping[str, str] | None = None
    ) -> None:
        """Run `command`; `at_our_end` is the signal that it gets when we end, however we do."""
        # setpriv (util-linux, on every Debian) asks the kernel for that.
        guard = ["setpriv", "--pdeathsig", at_our_end, "--"] if shutil.which("setpriv") else []
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *guard,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                # Its own group: Ctrl-C in a terminal reaches us alone, and `kill` takes its children along.
                start_new_session=True,
            )

    def _open_log(self) -> BinaryIO:
        """For appending, by a run that begins now."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        log = self.log_path.open("ab")
        self._log_start = log.tell()
        return log

    async def answers(self, url: str, timeout_s: float, enough: Callable[[str], bool] = lambda _: True) -> None:
        """Return once `url` answers 200 with enough; `exited` is raised where the process ends, or time runs out."""
        ended = asyncio.ensure_future(self.process.wait())
        try:
            async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
                while not ended.done():
                    # Refused until it listens; nothing announces that, so ask.
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url, headers={"Connection": "close"}) as response:
                            if response.status == 200 and enough(await response.text()):
                                return
                    await asyncio.wait([ended], timeout=_READY_POLL_S)
        except TimeoutError:
            raise self.exited(f"{self.called} not ready after {timeout_s} s; {self.log_tail()}") from None
        finally:
            ended.cancel()
        raise self.exited(f"{self.called} exited with {self.process.returncode}; {self.log_tail()}")

    async def wait(self) -> int:
        """Return the exit status once it has ended (negative: the signal that ended it)."""
        return await self.process.wait()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Ask it to end, wait for that up to `grace_s`, then kill it. Harmless if it has ended or never started."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        await self.kill()

    async def kill(self) -> None:
        """End it and its children at once. Harmless if it has ended or never started."""
        if self._process is None:
            return
        # A child may outlive its leader, and the group's id is not given to another while one of them lives.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def log_tail(self) -> str:
        if not self.log_path.exists():
            return f"it left no log at {self.log_path}"
        lines = self.log_path.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
        return "\n".join([f"its log ({self.log_path}) says:", *self._telling(lines)[-_LOG_TAIL_LINES:]])

    def _telling(self, lines: list[str]) -> list[str]:
        return lines


@dataclass(slots=True)
class Child(LocalProcess):
    title: ClassVar[str] = "balancer"
    arguments: Sequence[str]

    @property
    def called(self) -> str:
        return f"balancer {self.arguments[0]}"

    async def start(self) -> None:
        self._check_not_started()
        await self._spawn(sys.executable, "-m", "balancer", *self.arguments, at_our_end="TERM")


# Below the range that kernels hand out to outgoing connections (32768 and up on Linux): a port found there stays free
# between our look and the server's bind, unless another server takes it.
_FIRST_PORT = 20_000
_LAST_PORT = 32_767
_ATTEMPTS_PER_PORT = 200
ALLOWED = "LOCAL_PORTS"
"""In the environment: FIRST-LAST, both included, so that programs that start servers side by side each have a range."""

_given: set[int] = set()
"""Handed out by this process: a server may take seconds to bind its port, which looks free until then."""


def allowed() -> tuple[int, int]:
    """The first and the last port that may be found.

    Raises:
        ValueError: the environment says something else than FIRST-LAST.
    """
    first, _, last = os.environ.get(ALLOWED, f"{_FIRST_PORT}-{_LAST_PORT}").partition("-")
    return int(first), int(last)


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Return `count` different TCP ports that nobody listens on at `address`.

    They are bound together and released, so they are free when this returns; nothing reserves them after that.

    Raises:
        OSError: if that many cannot be found.
    """
    ports: list[int] = []
    first, last = allowed()
    generator = random.SystemRandom()
    with contextlib.ExitStack() as held:
        for _ in range(count * _ATTEMPTS_PER_PORT):
            if len(ports) == count:
                break
            candidate = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            port = generator.randint(first, last)
            if port in _given:
                continue
            try:
                candidate.bind((address, port))
            except OSError:
                continue
            ports.append(port)
            _given.add(port)
    if len(ports) < count:
        raise OSError(f"found only {len(ports)} of {count} free ports at {address}; stop some servers there")
    return ports


def free_port_range(count: int, address: str = "127.0.0.1") -> int:
    """Return the first of `count` free TCP ports in a row; as with `free_ports`, nothing reserves them.

    Raises:
        OSError: if there is no such row.
    """
    _, last = allowed()
    for _ in range(_ATTEMPTS_PER_PORT):
        first = free_ports(1, address)[0]
        if first + count - 1 > last:
            continue
        with contextlib.ExitStack() as held:
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)).bind((address, port))
            except OSError:
                continue
            row = set(range(first + 1, first + count))
            if _given & row:
                continue
            _given.update(row)
            return first
    raise OSError(f"found no {count} free ports in a row at {address}; stop some servers there")
