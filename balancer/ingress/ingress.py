"""Takes messages as the fleet has room for them, calls the listener for each, and settles what they end as."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from balancer.ingress.calls import MODEL_HEADER, Call, UnservableError, call_of, deadline_s
from balancer.ingress.events import Events, Execution
from balancer.ingress.message import Broker, BrokerError, Message, Settled
from balancer.ingress.metrics import IngressMetrics
from balancer.ingress.outcomes import Answer, Failure
from balancer.ingress.room import Room

logger = logging.getLogger(__name__)
MOST_HELD = 1000
"""Messages."""
MOST_HELD_BYTES = 256 * 2**20
MOST_TAKEN = 64
"""At a time: so far may what is held exceed its bytes."""
MOST_DELIVERIES = 20
"""A message that was handed out so often and never settled takes its ingress down each time."""
MOST_BEGUN = 8
"""Calls that failed and may have been begun with: so many workers is a message tried at."""
MOST_HEADERS, MOST_NAME_CHARACTERS, MOST_VALUE_CHARACTERS = 32, 128, 1024
"""A dead letter carries at most so many of its message's headers, and so much of their names and values."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_LAG_PERIOD_S = 2.0
Done = TypeVar("Done")
Send = Callable[[Call, Message, float, Execution | None], Awaitable[Answer | Failure]]


@dataclass(frozen=True, slots=True)
class Options:
    model: str = ""
    """The model of a message that names none."""
    in_order: bool = False
    """Whether messages of one key wait for each other."""
    events: bool = False
    """Whether events of streamed answers are published as they come."""
    drain_s: float = 25.0
    """Seconds after a stop for the messages held to be settled, and for their events to be published."""


class Ingress:
    def __init__(self, broker: Broker, call: Send, room: Room, options: Options, metrics: IngressMetrics) -> None:
        self._broker, self._call, self._room, self._options, self._metrics = broker, call, room, options, metrics
        self._events = Events(broker, metrics)
        self._held: dict[int, Message] = {}
        """By identity: a broker may hand the same id out twice."""
        self._held_bytes = 0
        self._executing = 0
        self._ended: asyncio.Queue[Settled] = asyncio.Queue()
        self._freed = asyncio.Event()
        self._last_of: dict[str, asyncio.Event] = {}
        """By key: set once the last message of it that came is settled."""
        self._settled_of: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Future[None] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set and what is held is settled, or `drain_s` are over.

        Raises:
            BrokerRefusesError: what it is asked for is not there.
        """
        working = asyncio.ensure_future(self._work())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((stopped, working), return_when=asyncio.FIRST_COMPLETED)
            if self._taking is not None:
                self._taking.cancel()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._until_empty(), self._options.drain_s if stop.is_set() else 0)
        finally:
            ended = await _end(working, stopped, *self._tasks)
            # What is held is handed out again, here or elsewhere.
            await self._broker.close()
        for error in ended:
            raise error

    async def _work(self) -> None:
        await self._insist(self._broker.open)
        loops = (self._settle(), self._keep(), self._watch_lag(), self._events.run())
        self._taking = asyncio.ensure_future(self._take())
        tasks = [self._taking, *map(asyncio.ensure_future, loops)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            ended = await _end(*tasks)
        for error in ended:
            raise error

    async def _until_empty(self) -> None:
        while self._held:
            self._freed.clear()
            await self._freed.wait()
        await self._events.until_told()

    async def _take(self) -> None:
        while True:
            while (most := self._most()) <= 0:
                self._freed.clear()
                await self._freed.wait()
            for message in await self._insist(functools.partial(self._broker.take, most)):
                self._metrics.taken.inc()
                self._held[id(message)] = message
                self._held_bytes += len(message.body)
                self._metrics.held.set(len(self._held))
                self._begin(message)

    def _most(self) -> int:
        """That may be taken now: as many as the fleet has room for beside those that wait for it, and where a broker
        is slow to settle them as many again.
        """
        total, held = self._room.total, len(self._held)
        room = min(total - self._executing, 2 * total - held, MOST_HELD - held, MOST_TAKEN)
        return room if self._held_bytes < MOST_HELD_BYTES else 0

    def _begin(self, message: Message) -> None:
        before = None
        if self._options.in_order and message.key:
            mine = self._settled_of[id(message)] = asyncio.Event()
            before, self._last_of[message.key] = self._last_of.get(message.key), mine
        self._executing += 1
        task = asyncio.create_task(self._work_on(message, before))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_on(self, message: Message, before: asyncio.Event | None) -> None:
        try:
            if before is not None:
                await before.wait()
            ended = Settled(message, "known") if message.known else await self._outcome(message)
        except Exception:  # of one message, and the others go on
            logger.exception("message %s failed by a mistake of the ingress's", message.id)
            ended = self._dead(message, "a mistake of the ingress's, whose log says how", 1)
        finally:
            self._executing -= 1
            self._freed.set()
        self._ended.put_nowait(ended)

    async def _outcome(self, message: Message) -> Settled:
        if message.deliveries > MOST_DELIVERIES:
            return self._dead(message, f"handed out {message.deliveries} times, and never settled")
        try:
            call, until_s = call_of(message, self._options.model), deadline_s(message)
        except UnservableError as error:
            return self._dead(message, str(error))
        # Somebody may have begun with it before it came here again.
        begun, pause_s = int(message.deliveries > 1), _FIRST_PAUSE_S
        while time.time() < until_s:
            await self._room.enter(call.model)
            try:
                if time.time() >= until_s:
                    break
                if begun:
                    self._metrics.repeated.inc()
                execution = self._events.of(message) if self._options.events else None
                answer = await self._call(call, message, until_s, execution)
            finally:
                self._room.leave(call.model)
            if isinstance(answer, Answer):
                self._metrics.calls.labels("answered").inc()
                return self._answered(message, call, answer)
            self._metrics.calls.labels("refused" if answer.final else "failed").inc()
            begun += answer.begun
            if answer.final or begun >= MOST_BEGUN:
                return self._dead(message, answer.reason, begun)
            await asyncio.sleep(max(answer.after_s, pause_s * random.uniform(0.5, 1.5)))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return self._dead(message, "its deadline has passed", begun)

    def _answered(self, message: Message, call: Call, answer: Answer) -> Settled:
        if len(answer.body) > self._broker.max_body_bytes:
            most = self._broker.max_body_bytes
            reason = f"its answer has {len(answer.body)} bytes, and the broker takes at most {most}"
            return self._dead(message, reason, 1)
        return Settled(message, "answered", answer.body, {**answer.headers, MODEL_HEADER: call.model})

    def _dead(self, message: Message, reason: str, begun: int = 0) -> Settled:
        logger.warning("message %s goes to the dead letters: %s", message.id, reason)
        body = message.body
        if len(body) > self._broker.max_body_bytes:
            body, reason = b"", f"{reason} (its {len(body)} bytes are left out)"
        said = "".join(each if " " <= each <= "~" else "?" for each in reason)
        headers = {**_headers_of(message), "x-dead-reason": said, "x-dead-calls": str(begun)}
        return Settled(message, "dead", body, headers)

    async def _settle(self) -> None:
        """One batch after another: what ends meanwhile goes with the next."""
        while True:
            batch = [await self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get_nowait())
            for settled, now in await self._insist(functools.partial(self._broker.settle, batch)):
                self._forget(settled, now)

    def _forget(self, settled: Settled, now: bool) -> None:
        message = settled.message
        if self._held.pop(id(message), None) is None:
            return
        self._held_bytes -= len(message.body)
        self._metrics.held.set(len(self._held))
        self._metrics.settled.labels(settled.fate if now or settled.fate == "known" else "lost_race").inc()
        self._metrics.duration.observe(max(time.time() - message.published_s, 0.0))
        if (mine := self._settled_of.pop(id(message), None)) is not None:
            mine.set()
            if self._last_of.get(message.key) is mine:
                del self._last_of[message.key]
        self._freed.set()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._broker.lease_s / 3)
            await self._insist(lambda: self._broker.keep([*self._held.values()]))

    async def _watch_lag(self) -> None:
        while True:
            self._metrics.lag.set(await self._insist(self._broker.lag))
            oldest_s = min((message.published_s for message in self._held.values()), default=time.time())
            self._metrics.oldest.set(max(time.time() - oldest_s, 0.0))
            for model, limit in self._room.of().items():
                self._metrics.room.labels(model).set(limit)
            await asyncio.sleep(_LAG_PERIOD_S)

    async def _insist(self, ask: Callable[[], Awaitable[Done]]) -> Done:
        """What the broker says, however long it is away."""
        pause_s, away = _FIRST_PAUSE_S, False
        while True:
            try:
                said = await ask()
            except BrokerError as error:
                self._metrics.broker_errors.inc()
                if not away:
                    logger.warning("the broker does not do it, and is asked again: %s", error)
                away = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                if away:
                    logger.info("the broker is there again")
                return said


def _headers_of(message: Message) -> dict[str, str]:
    """Those of its own headers that are handed on with a dead letter."""
    some = itertools.islice(message.headers.items(), MOST_HEADERS)
    return {name[:MOST_NAME_CHARACTERS]: value[:MOST_VALUE_CHARACTERS] for name, value in some}


async def _end(*tasks: asyncio.Future[Any]) -> list[Exception]:
    """Cancel them all; what some had failed with before."""
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    return [error for error in ended if isinstance(error, Exception)]
