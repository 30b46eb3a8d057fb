"""Starts processes without their imports: it forks them from a process that has imported what they run.

Else importing is half of what a balancer or an agent costs a test. The forked process is a child of the test process,
as if that had started it: with its environment and folder, in a session of its own, with its output in a log.
"""

import asyncio
import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


class Forked:
    """As much of `asyncio.subprocess.Process` as stacks use, for a child that asyncio did not start."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._descriptor = os.pidfd_open(pid)
        self._loop.add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        """As there."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """As there."""
        if self.returncode is None:
            os.kill(self.pid, number)

    terminate = functools.partialmethod(send_signal, signal.SIGTERM)
    kill = functools.partialmethod(send_signal, signal.SIGKILL)


class Nursery:
    """Runs `python -m module DESCRIPTOR`, which imports what it will run and then calls `serve`; asks it for forks."""

    def __init__(self, module: str, path: Path) -> None:
        """`path`: of the folder that has the module."""
        self._path = path
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", module, str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=self._environment(), pass_fds=[theirs.fileno()])
        atexit.register(self._end)

    def _environment(self) -> dict[str, str]:
        """Of this process, as it is now; the module is found in it."""
        path = os.pathsep.join([str(self._path), *filter(None, [os.environ.get("PYTHONPATH")])])
        return os.environ | {"PYTHONPATH": path}

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(self, arguments: Sequence[str], log: BinaryIO) -> Forked:
        """Start a process that runs with these arguments."""
        request = json.dumps([list(arguments), self._environment(), str(Path.cwd())]).encode()
        # For as long as it takes: an orphan becomes a child of its nearest ancestor that has said this.
        _libc.prctl(_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._socket, [len(request).to_bytes(4) + request], [log.fileno()])
            pid = int.from_bytes(_exactly(self._socket, 4))
        finally:
            _libc.prctl(_SET_CHILD_SUBREAPER, 0)
        return Forked(pid)


def serve(descriptor: int, run: Callable[[list[str]], None]) -> None:
    """Fork a process for each request on the socket, until the test process closes it.

    Each is forked twice: the process between the two ends at once, so that the test process adopts the orphan.
    """
    gc.freeze()
    test_process = os.getppid()
    with socket.socket(fileno=descriptor) as requests:
        while requests.recv(1, socket.MSG_PEEK):
            count, (log, *_), *_ = socket.recv_fds(requests, 4, 1)
            arguments, environment, folder = json.loads(_exactly(requests, int.from_bytes(count)))
            if os.fork() == 0:
                between = os.getpid()
                if os.fork():
                    os._exit(0)
                _be_adopted(between, test_process)
                _take_over(environment, folder, log)
                requests.sendall(os.getpid().to_bytes(4))
                break
            os.close(log)
            os.wait()
        else:
            return
    run(arguments)


def _be_adopted(between: int, test_process: int) -> None:
    """Wait until this process is the test process's child. It ends with that one, even if that is now."""
    while os.getppid() == between:
        os.sched_yield()
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != test_process:
        os._exit(1)


def _take_over(environment: dict[str, str], folder: str, log: int) -> None:
    """Have what a process has that the test process starts."""
    os.setsid()
    for stream, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, stream)
    os.close(log)
    # Tests install plugins, and remove them.
    before, now = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (os.environ, environment))
    sys.path[1:] = [*now, *(each for each in sys.path[1:] if each not in before)]
    importlib.invalidate_caches()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def _exactly(sender: socket.socket, count: int) -> bytes:
    found = sender.recv(count, socket.MSG_WAITALL)
    assert len(found) == count, "the nursery has ended, or the test process has; a failing import says so above"
    return found
