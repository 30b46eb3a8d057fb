"""A server of OpenAI's API that is no language model: says what the test says, and dies where it says so."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from balancer.discovery.workers import WorkerSpec

Speak = Callable[["Speaker"], Awaitable[web.StreamResponse]]


@dataclass
class Speaker:
    """One request, and the way to its client."""

    request: web.Request
    asked: dict[str, Any]

    async def say(self, *texts: str, end: bool = True) -> web.StreamResponse:
        """A stream of these texts; without its `end` the worker dies then."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-of-worker": "yes"})
        await response.prepare(self.request)
        for text in texts:
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            await response.write(f"data: {json.dumps({'id': 'x', 'choices': [choice]})}\n\n".encode())
        if not end:
            assert self.request.transport is not None
            self.request.transport.abort()
            return response
        await response.write(b"data: [DONE]\n\n")
        return response


@dataclass
class FakeOpenAIWorker:
    name: str
    speak: Speak
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Its client left while it spoke."""
    port: int = 0
    _runner: web.ServerRunner | None = None

    def spec(self, _: int) -> WorkerSpec:
        """As discovery lists it."""
        return WorkerSpec(name=self.name, address="127.0.0.1", protocol="openai", http_port=self.port)

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """As if it were killed."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            return await self.speak(Speaker(request, asked))
        except asyncio.CancelledError:
            self.left.set()
            raise
