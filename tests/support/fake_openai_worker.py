"""A server of OpenAI's API, or of Triton's `generate_stream`, without a model: it says what a test says, and dies."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from balancer.discovery.workers import WorkerProtocol, WorkerSpec

Speak = Callable[["Speaker"], Awaitable[web.StreamResponse]]


@dataclass
class Speaker:
    """One request, and the way to its client."""

    request: web.Request
    asked: dict[str, Any]

    async def generate(self, *texts: str, error: str = "", end: bool = True) -> web.StreamResponse:
        """As a Triton's `generate_stream` says these texts, and then an error if there is one."""
        events = [{"model_name": "m", "model_version": "1", "text_output": text} for text in texts]
        return await self._stream(*events, *([{"error": error}] if error else []), end=end)

    async def say(self, *texts: str, end: bool = True) -> web.StreamResponse:
        """A stream of these texts; without its `end` the worker dies then."""
        choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None} for text in texts]
        return await self._stream(*({"id": "x", "choices": [each]} for each in choices), end=end, done=True)

    async def _stream(self, *events: dict[str, Any], end: bool, done: bool = False) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-of-worker": "yes"})
        await response.prepare(self.request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        if not end:
            assert self.request.transport is not None
            self.request.transport.abort()
        elif done:
            await response.write(b"data: [DONE]\n\n")
        return response


@dataclass
class FakeOpenAIWorker:
    name: str
    speak: Speak
    protocol: WorkerProtocol = "openai"
    """`triton`: of its ports, HTTP's alone."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Its client left while it spoke."""
    port: int = 0
    _runner: web.ServerRunner | None = None

    def spec(self, _: int) -> WorkerSpec:
        """As discovery lists it."""
        return WorkerSpec(name=self.name, address="127.0.0.1", protocol=self.protocol, http_port=self.port)

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
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            return await self.speak(Speaker(request, asked))
        except asyncio.CancelledError:
            self.left.set()
            raise
