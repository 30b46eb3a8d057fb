"""Processes that need not import what they run: a nursery has, and they are forked from it.

Importing would be half of what balancers and agents cost the tests. A process of a nursery's is a child of who asked
for it, as if started there: with its environment and folder, in a session of its own, its output in a log.
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
    """What is used of `asyncio.subprocess.Process`."""

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
    """Of this process. `module` is run with a descriptor, and calls `serve` with what it has imported."""

    def __init__(self, module: str, path: Path) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])}
        with theirs:
            command = [sys.executable, "-m", module, str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        self._socket = ours
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(self, arguments: Sequence[str], environment: dict[str, str], log: BinaryIO) -> Forked:
        """One that runs `arguments`."""
        asked = json.dumps([list(arguments), environment, str(Path.cwd())]).encode()
        # Whose parent ends becomes a child of the nearest that has said this.
        _libc.prctl(_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._socket, [len(asked).to_bytes(4) + asked], [log.fileno()])
            pid = int.from_bytes(_exactly(self._socket, 4))
        finally:
            _libc.prctl(_SET_CHILD_SUBREAPER, 0)
        return Forked(pid)


def serve(descriptor: int, run: Callable[[list[str]], None]) -> None:
    """Fork whom is asked for, until whoever asks is gone."""
    gc.freeze()
    asker = os.getppid()
    with socket.socket(fileno=descriptor) as asked:
        while asked.recv(1, socket.MSG_PEEK):
            count, (log, *_), *_ = socket.recv_fds(asked, 4, 1)
            arguments, environment, folder = json.loads(_exactly(asked, int.from_bytes(count)))
            if os.fork() == 0:
                if os.fork():
                    os._exit(0)
                _become(asked, log, asker, environment, folder)
                break
            os.close(log)
            os.wait()
        else:
            return
    run(arguments)


def _become(asked: socket.socket, log: int, asker: int, environment: dict[str, str], folder: str) -> None:
    """A child of the asker's, whom it tells; it ends when the asker does."""
    os.setsid()
    while os.getppid() != asker:
        os.sched_yield()  # the one between us ends
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)
    for stream, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, stream)
    os.close(log)
    # Plugins come and go.
    ours, theirs = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (os.environ, environment))
    sys.path[1:] = [*theirs, *(each for each in sys.path[1:] if each not in ours)]
    importlib.invalidate_caches()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    asked.sendall(os.getpid().to_bytes(4))


def _exactly(sender: socket.socket, count: int) -> bytes:
    found = sender.recv(count, socket.MSG_WAITALL)
    assert len(found) == count, "the nursery is gone, or who asks it"
    return found
