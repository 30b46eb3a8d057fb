"""What an ASGI application that serves a model says of itself, where the agent runs in its own process: it sees each
request come, wait for its turn, and end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from balancer.agent.server_state import ServerState, next_incarnation
from balancer.scheduler.events import ModelReport

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
_VERSION = "1"


class AsgiSource:
    """Counts the requests of one application. Those beyond `at_once` wait, the oldest begins next, and its time is
    counted from there.
    """

    def __init__(self, model: str, at_once: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """`at_once`: how many requests the application executes at the same time; it may change."""
        self._model, self._at_once, self._clock = model, at_once, clock
        self._incarnation = next_incarnation(0)
        self._waiting: dict[object, None] = {}
        self._began_s: dict[object, float] = {}
        self._succeeded = self._failed = self._timed = 0
        self._took_s = 0.0
        self.looked = asyncio.Event()
        self.looked.set()

    async def watch(self) -> None:
        """There is nothing to ask for."""

    async def read(self) -> ServerState:
        report = ModelReport(
            model=self._model,
            version=_VERSION,
            ready=True,
            pending=len(self._waiting),
            executing=len(self._began_s),
            succeeded=self._succeeded,
            failed=self._failed,
            instances=max(self._at_once(), 1),
            batches=((1, self._timed, self._took_s),) if self._timed else (),
        )
        return ServerState(True, self._incarnation, (report,))

    def close(self) -> None:
        pass

    def came(self) -> object:
        """A request; what is returned stands for it."""
        request = object()
        self._waiting[request] = None
        self._begin()
        return request

    def ended(self, request: object, status: int, *, timed: bool) -> None:
        """`status`: of HTTP, 0: it was cut short. `timed`: whether what it took says what others will take."""
        self._waiting.pop(request, None)
        began_s = self._began_s.pop(request, None)
        if 0 < status < 500:
            self._succeeded += 1
            if timed and status < 400 and began_s is not None:
                self._timed += 1
                self._took_s += self._clock() - began_s
        elif status:
            self._failed += 1
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._began_s) < self._at_once():
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._began_s[oldest] = self._clock()


class Reporting:
    """An application around another one, whose requests it tells a source of, while `report` runs."""

    def __init__(self, app: Application, source: AsgiSource, report: Callable[[], Awaitable[None]]) -> None:
        """Made in the event loop that serves the application."""
        self._app, self._source = app, source
        self._reporting = asyncio.ensure_future(report())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request, status, ends = self._source.came(), 0, False

        async def sent(message: Message) -> None:
            nonlocal status, ends
            status = message.get("status", status)
            ends = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except Exception:
            status, ends = 500, True
            raise
        finally:
            # What an answer of tokens takes depends on how many there are.
            self._source.ended(request, status if ends else 0, timed=str(scope["path"]).endswith("/infer"))
