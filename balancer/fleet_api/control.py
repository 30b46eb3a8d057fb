"""Changes of workers that a client asks the fleet for: who may, where, and again at workers that join later."""

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from balancer.channels.channels import Channels
from balancer.channels.restricted import Headers
from balancer.config.config import Config
from balancer.config.sections import ANYBODY
from balancer.discovery.workers import WorkerSpec
from balancer.extproc.kserve import SETTINGS
from balancer.extproc.picker import PER_SERVER
from balancer.files.regular import UnreadableError, read_regular, replace_file
from balancer.files.schema import is_local
from balancer.fleet_api.fan_out import REQUESTS, Answers, FailedError, Failure, FanOut, FleetCallCounts, ask, summed_up
from balancer.fleet_api.questions import Members
from balancer.log_throttle import LogThrottle

MOST_CHANGES = 4096
MOST_BYTES = 64 * 2**20
_FILE_BYTES = 2 * MOST_BYTES
_LOAD, _UNLOAD = "RepositoryModelLoad", "RepositoryModelUnload"
_REGISTER, _UNREGISTER = "SharedMemoryRegister", "SharedMemoryUnregister"


class TooMuchError(Exception):
    """No more can be kept; the message says what to do."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    method: str
    request: Any
    headers: Headers = ()

    @property
    def model(self) -> str:
        return str(self.request.model_name) if self.method in (_LOAD, _UNLOAD) else ""

    @property
    def loads(self) -> bool:
        return self.method == _LOAD

    @property
    def about(self) -> str:
        """What it changes: of two changes about the same, the later one counts."""
        if self.method in (_LOAD, _UNLOAD):
            return f"model {self.model}"
        if self.method in SETTINGS:
            return f"{self.method} {getattr(self.request, 'model_name', '')}"
        return f"{self.method.partition('SharedMemory')[0]} region {self.request.name}"


class Memory:
    """Kept in memory and, where there is a file, there: shared by the processes of a machine, and after a restart."""

    def __init__(self, file: Callable[[], Path | None]) -> None:
        self._file = file
        self._changes: dict[str, MemoryChange] = {}

    def changes(self) -> list[MemoryChange]:
        """In the order in which to make them; blocks."""
        self._read()
        return list(self._changes.values())

    def make_room(self, change: MemoryChange) -> None:
        """TooMuchError where such a change could not be kept."""
        kept = [each for about, each in self._changes.items() if about != change.about]
        size = sum(each.request.ByteSize() for each in (*kept, change))
        if len(kept) >= MOST_CHANGES or size > MOST_BYTES:
            raise TooMuchError(
                f"more than {MOST_CHANGES} changes or {MOST_BYTES} bytes would have to be kept for workers that join; "
                "put models and files into the repository"
            )

    def keep(self, change: MemoryChange) -> None:
        """Take a change over that was made; blocks."""
        self._read()
        before = self._changes.pop(change.about, None)
        if change.method.endswith(_UNREGISTER):
            self._forget_regions(change)
        elif change.method in SETTINGS:
            self._changes[change.about] = _over(before, change)
        else:
            self._changes[change.about] = change
        self._write()

    def _forget_regions(self, change: MemoryChange) -> None:
        if not change.request.name:
            kind = change.method.replace(_UNREGISTER, _REGISTER)
            for about in [about for about, each in self._changes.items() if each.method == kind]:
                del self._changes[about]

    def _read(self) -> None:
        file = self._file()
        if file is None or not file.exists():
            return
        try:
            entries = json.loads(read_regular(file, _FILE_BYTES))
            changes = [_change(entry) for entry in entries]
        except (UnreadableError, DecodeError, ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            # What is known stays; the next change writes the file anew.
            logger.error("fleet.control.file: %s cannot be used: %s; remove it, and make the changes anew", file, error)
            return
        self._changes = {change.about: change for change in changes}

    def _write(self) -> None:
        file = self._file()
        if file is None:
            return
        entries = [
            {
                "method": change.method,
                "request": base64.b64encode(change.request.SerializeToString()).decode(),
                "headers": list(change.headers),
            }
            for change in self._changes.values()
        ]
        try:
            replace_file(file, json.dumps(entries).encode())  # headers of restricted protocols are secrets
        except OSError as error:
            logger.error("fleet.control.file: %s cannot be written: %s; name another", file, error)


def _change(entry: dict[str, Any]) -> MemoryChange:
    method = str(entry["method"])
    request: Message = REQUESTS[method].FromString(base64.b64decode(entry["request"], validate=True))
    return MemoryChange(method, request, tuple((str(name), str(value)) for name, value in entry["headers"]))


def _over(before: MemoryChange | None, change: MemoryChange) -> MemoryChange:
    """Settings that the later change does not name are the earlier one's."""
    if before is None:
        return change
    request = type(change.request)()
    request.CopyFrom(before.request)
    for key, value in change.request.settings.items():
        request.settings[key].CopyFrom(value)
    return MemoryChange(change.method, request, change.headers)


logger = logging.getLogger(__name__)

_SEEN_S = 3.0
"""So long a load waits for the agents to report the model: they read the index five times a second."""
_SEEN_POLL_S = 0.02
_PAUSE_S = 1.0
_MOST_PAUSE_S = 30.0
_APART = (
    "shared memory is between processes of one machine, and these workers are not on the client's; send the tensors in "
    "the request"
)


class Control:
    def __init__(
        self,
        members: Members,
        fan_out: FanOut,
        channels: Channels,
        config: Callable[[], Config],
        counts: FleetCallCounts,
        replays: bool,
    ) -> None:
        """`replays`: this process makes changes again at workers that join; one of a machine's does."""
        self._members = members
        self._fan_out = fan_out
        self._channels = channels
        self._config = config
        self._counts = counts
        self._replays = replays
        self._memory = Memory(self._file)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._throttle = LogThrottle(time.monotonic)
        self._lives: dict[str, tuple[str, int]] = {}
        self._catching_up: dict[str, asyncio.Task[None]] = {}

    async def change(self, method: str, request: Message, principal: str, headers: Headers = ()) -> Message:
        """Make a change at all workers that it concerns; the first one's answer.

        Raises:
            FailedError: the caller may not, or a worker failed; changes at the others stay.
        """
        self.admit(method, principal)
        change = MemoryChange(method, request, headers)
        turn = self._turns.setdefault(change.about, asyncio.Lock())
        # In one order at all workers, which is the order in which they are kept.
        async with turn:
            return await self._made(change, principal)

    def admit(self, method: str, principal: str) -> None:
        """FailedError where this caller may not make such a change here."""
        callers = self._config().fleet.control.callers
        if principal not in callers and ANYBODY not in callers:
            self._counts.changes.labels(method, "refused").inc()
            if self._throttle.due():
                logger.warning("a change of workers is refused", extra={"call": method, "principal": principal})
            raise FailedError(Failure(grpc.StatusCode.UNIMPLEMENTED, PER_SERVER))
        if "SharedMemory" in method and not self._is_one_host():
            self._counts.changes.labels(method, "refused").inc()
            raise FailedError(Failure(grpc.StatusCode.FAILED_PRECONDITION, _APART))

    def _is_one_host(self) -> bool:
        """Whether clients share the workers' machine, as far as config and addresses tell."""
        local = is_local(self._config().envoy.listen)
        return local and all(worker.address in ("127.0.0.1", "::1") for worker in self._members.listed)

    def _file(self) -> Path | None:
        file = self._config().fleet.control.file
        return None if file is None else Path(file)

    async def _each(self, names: Sequence[str], change: MemoryChange) -> Answers:
        return await self._fan_out.each(
            names,
            lambda worker: ask(self._channels, worker, change.method, change.request, change.headers),
            self._config().fleet.control.timeout_s,
        )

    async def _made(self, change: MemoryChange, principal: str) -> Message:
        names = self._concerned(change)
        try:
            self._memory.make_room(change)
        except TooMuchError as error:
            raise FailedError(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))) from error
        answers = await self._each(names, change)
        if answers.given:
            await asyncio.to_thread(self._memory.keep, change)
        result = "done" if not answers.failed else "partial" if answers.given else "failed"
        self._counts.changes.labels(change.method, result).inc()
        failed = {worker: failure.words for worker, failure in answers.failed.items()}
        about = {"principal": principal, "call": change.method, "about": change.about, "result": result}
        logger.info("workers changed", extra=about | {"workers": names, "failed": failed})
        if answers.failed:
            raise FailedError(summed_up(answers.failed, len(names), change.method))
        if change.loads:
            await self._seen(names, change.model)
        first: Message = answers.any()[0]
        return first

    async def _seen(self, names: Sequence[str], model: str) -> None:
        """Return once requests for the model find its workers, as they do at one Triton when it has answered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_S):
                while not self._members.serve(names, model):
                    await asyncio.sleep(_SEEN_POLL_S)

    def _concerned(self, change: MemoryChange) -> list[str]:
        if not change.loads:
            return self._members.names
        names = self._members.to_load(change.model)
        if not names:
            rule = f"the model table lets no worker that is listed have '{change.model}'"
            raise FailedError(Failure(grpc.StatusCode.UNAVAILABLE, rule))
        return names

    def tick(self) -> None:
        """Find who joined, or began anew, and has to catch up."""
        if not self._replays or not self._config().fleet.control.callers:
            return
        lives = self._members.incarnations()
        for name in self._lives.keys() - lives.keys():
            self._stop(name)
        for name, life in lives.items():
            if self._lives.get(name) != life:
                self._stop(name)
                self._catching_up[name] = asyncio.get_running_loop().create_task(self._catch_up(name))
        self._lives = lives

    def _stop(self, name: str) -> None:
        task = self._catching_up.pop(name, None)
        if task is not None:
            task.cancel()

    async def _catch_up(self, worker: str) -> None:
        """Make all changes that are kept, in order. What the worker refuses is told and left; silence is waited out."""
        for change in await asyncio.to_thread(self._memory.changes):
            if change.loads and worker not in self._members.to_load(change.model):
                continue
            pause_s = _PAUSE_S
            while (failure := (await self._each((worker,), change)).failed.get(worker)) is not None and failure.away:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            self._counts.replays.labels("failed" if failure else "done").inc()
            about = {"worker": worker, "call": change.method, "about": change.about}
            if failure is not None:
                logger.error("a worker that joined refuses a change: %s", failure.words, extra=about)
            else:
                logger.info("a worker that joined was changed as the others were", extra=about)

    def workers(self, listed: tuple[WorkerSpec, ...]) -> None:
        names = {worker.name for worker in listed}
        for name in [name for name in self._catching_up if name not in names]:
            self._stop(name)

    async def close(self) -> None:
        tasks, self._catching_up = list(self._catching_up.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
