"""Changes of workers that a client asks the fleet for: who may, where, and again at workers that join later."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable

import grpc
from google.protobuf.message import Message

from balancer.discovery.workers import WorkerSpec
from balancer.fleet.asking import Asking, FailedError, Failure, said_of
from balancer.fleet.counts import Counts
from balancer.fleet.members import Members, on_this_machine
from balancer.fleet.memory import Change, Memory, TooMuchError
from balancer.fleet.ports import ask
from balancer.fleet.settings import ControlSettings
from balancer.gateway.picker import PER_SERVER
from balancer.seldom import Seldom
from balancer.workers.channels import Channels
from balancer.workers.restricted import Headers

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
_MOST_PAUSE_S = 30.0
_APART = (
    "shared memory is between processes of one machine, and these workers are not on the client's; send the tensors in "
    "the request"
)


class Control:
    """Belongs to one event loop."""

    def __init__(
        self,
        members: Members,
        asking: Asking,
        channels: Channels,
        settings: Callable[[], ControlSettings],
        counts: Counts,
        replays: bool,
    ) -> None:
        """`replays`: this process makes changes again at workers that join; one of a machine's does."""
        self._members = members
        self._asking = asking
        self._channels = channels
        self._settings = settings
        self._counts = counts
        self._replays = replays
        self._memory = Memory(lambda: settings().file)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._seldom = Seldom(time.monotonic)
        self._lives: dict[str, tuple[str, int]] = {}
        self._catching_up: dict[str, asyncio.Task[None]] = {}

    async def change(self, method: str, request: Message, principal: str, headers: Headers = ()) -> Message:
        """Make a change at all workers that it concerns; the first one's answer.

        Raises:
            FailedError: the caller may not, or a worker failed; changes at the others stay.
        """
        self.admit(method, principal)
        change = Change(method, request, headers)
        turn = self._turns.setdefault(change.about, asyncio.Lock())
        # In one order at all workers, which is the order in which they are kept.
        async with turn:
            return await self._made(change, principal, self._settings())

    def admit(self, method: str, principal: str) -> None:
        """FailedError where this caller may not make such a change here."""
        settings = self._settings()
        if not settings.allows(principal):
            self._counts.changes.labels(method, "refused").inc()
            if self._seldom.due():
                logger.warning("a change of workers is refused", extra={"call": method, "principal": principal})
            raise FailedError(Failure(grpc.StatusCode.UNIMPLEMENTED, PER_SERVER))
        if "SharedMemory" in method and not (settings.one_host and on_this_machine(self._members.listed)):
            self._counts.changes.labels(method, "refused").inc()
            raise FailedError(Failure(grpc.StatusCode.FAILED_PRECONDITION, _APART))

    async def _made(self, change: Change, principal: str, settings: ControlSettings) -> Message:
        names = self._concerned(change)
        try:
            self._memory.make_room(change)
        except TooMuchError as error:
            raise FailedError(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))) from error
        answers = await self._asking.each(
            names,
            lambda worker: ask(self._channels, worker, change.method, change.request, change.headers),
            settings.timeout_s,
        )
        if answers.given:
            await asyncio.to_thread(self._memory.keep, change)
        result = "done" if not answers.failed else "partial" if answers.given else "failed"
        self._counts.changes.labels(change.method, result).inc()
        failed = {worker: failure.words for worker, failure in answers.failed.items()}
        told = {"principal": principal, "call": change.method, "about": change.about, "result": result}
        logger.info("workers changed", extra=told | {"workers": names, "failed": failed})
        if answers.failed:
            raise FailedError(said_of(answers.failed, len(names), change.method))
        first: Message = answers.any()[0]
        return first

    def _concerned(self, change: Change) -> list[str]:
        if not change.loads:
            return self._members.names
        names = self._members.to_load(change.model)
        if not names:
            rule = f"the model table lets no worker that is listed have '{change.model}'"
            raise FailedError(Failure(grpc.StatusCode.UNAVAILABLE, rule))
        return names

    def tick(self) -> None:
        """Find who joined, or began anew, and has to catch up."""
        if not self._replays or not self._settings().callers:
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
            while (failure := await self._again(worker, change)) is not None and failure.away:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            self._counts.replays.labels("failed" if failure else "done").inc()
            about = {"worker": worker, "call": change.method, "about": change.about}
            if failure is not None:
                logger.error("a worker that joined refuses a change: %s", failure.words, extra=about)
            else:
                logger.info("a worker that joined was changed as the others were", extra=about)

    async def _again(self, worker: str, change: Change) -> Failure | None:
        answers = await self._asking.each(
            (worker,),
            lambda name: ask(self._channels, name, change.method, change.request, change.headers),
            self._settings().timeout_s,
        )
        return answers.failed.get(worker)

    def workers(self, listed: tuple[WorkerSpec, ...]) -> None:
        """Another list: whoever left it has nothing to catch up with."""
        names = {worker.name for worker in listed}
        for name in [name for name in self._catching_up if name not in names]:
            self._stop(name)

    async def close(self) -> None:
        """End what is under way."""
        tasks, self._catching_up = list(self._catching_up.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
