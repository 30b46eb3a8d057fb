"""Changes of workers that a client asks the fleet for: who may, where, and again at workers that join later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from google.protobuf.message import Message

from balancer.channels.channels import Channels
from balancer.channels.restricted import Headers
from balancer.config.config import Config
from balancer.config.fleet import ANYBODY
from balancer.discovery.workers import WorkerSpec
from balancer.extproc.picker import PER_SERVER
from balancer.files.schema import is_local
from balancer.fleet_api.counts import FleetCallCounts
from balancer.fleet_api.fan_out import Answers, FailedError, Failure, FanOut, summed_up
from balancer.fleet_api.members import Members
from balancer.fleet_api.memory import Memory, MemoryChange, TooMuchError
from balancer.fleet_api.ports import ask
from balancer.log_throttle import LogThrottle

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
        """Another list: whoever left it has nothing to catch up with."""
        names = {worker.name for worker in listed}
        for name in [name for name in self._catching_up if name not in names]:
            self._stop(name)

    async def close(self) -> None:
        tasks, self._catching_up = list(self._catching_up.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
