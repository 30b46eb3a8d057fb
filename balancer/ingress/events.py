"""Events of streamed answers as messages of a topic, as they come.

The answer has them all, once; these come once at most, each execution of a request from its first on.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque

from balancer.files.answers import EventSplitter, TooLongError
from balancer.ingress.message import Broker, BrokerError, Event, Message
from balancer.ingress.metrics import IngressMetrics

logger = logging.getLogger(__name__)
MOST_WAITING, MOST_WAITING_BYTES = 10_000, 16 * 2**20
"""Events that the broker has not taken yet; what comes beyond is lost."""
_MOST_EVENT_BYTES = 2**22
_MOST_TOLD = 500
"""At a time."""


class Execution:
    """One call of a message: what comes of its answer is cut into events, and told."""

    def __init__(self, message: Message, events: Events) -> None:
        self.name = secrets.token_hex(4)
        self._message, self._events = message, events
        self._splitter: EventSplitter | None = EventSplitter(_MOST_EVENT_BYTES)
        self._sequence = itertools.count()

    def feed(self, part: bytes) -> None:
        if self._splitter is None:
            return
        try:
            for event in self._splitter.split(part):
                if data := _data_of(event):
                    self._events.add(Event(self._message, self.name, next(self._sequence), data))
        except TooLongError:
            self._splitter = None
            self._events.lose(1)


class Events:
    def __init__(self, broker: Broker, metrics: IngressMetrics) -> None:
        self._broker, self._counts = broker, metrics.events
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._come, self._all_told = asyncio.Event(), asyncio.Event()
        self._all_told.set()

    def of(self, message: Message) -> Execution:
        return Execution(message, self)

    def add(self, event: Event) -> None:
        too_long = len(event.data) > self._broker.max_body_bytes
        if too_long or len(self._waiting) >= MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES:
            self.lose(1)
            return
        self._waiting.append(event)
        self._waiting_bytes += len(event.data)
        self._come.set()
        self._all_told.clear()

    async def until_told(self) -> None:
        """Wait until no event is left that is neither published nor counted as lost."""
        await self._all_told.wait()

    def lose(self, count: int) -> None:
        self._counts.labels("lost").inc(count)

    async def run(self) -> None:
        failing = False
        while True:
            await self._come.wait()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_TOLD))]
            self._waiting_bytes -= sum(len(event.data) for event in batch)
            if not self._waiting:
                self._come.clear()
            try:
                await self._broker.tell(batch)
            except BrokerError as error:
                if not failing:
                    logger.warning("events of streamed answers are lost, and the answers are not: %s", error)
                failing = True
                self.lose(len(batch))
            else:
                failing = False
                self._counts.labels("told").inc(len(batch))
            if not self._waiting:
                self._all_told.set()


def _data_of(event: bytes) -> bytes:
    """What its lines of `data` say; https://html.spec.whatwg.org/multipage/server-sent-events.html."""
    lines = (line.removeprefix(b"data:") for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b" ") for line in lines)
