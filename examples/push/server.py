"""Pushes answers to browsers by WebSocket: what they ask becomes a request in NATS, which `balancer ingress` serves.

    balancer up --workers 0 --llm 2 --ingress-port 4222 --config examples/push/balancer.yaml
    python examples/push/server.py        # and open http://127.0.0.1:8080/push/

A browser says `{"id": ID, "ask": BODY}`, the body of one of OpenAI's requests, and hears its events as they come, and
the answer. After a broken connection it says the same again: the answer is kept, and an id is asked once. Whoever has
an id may read its answer, so it is 32 hexadecimal digits, drawn at random.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
from aiohttp import WSMsgType, web
from nats.aio.client import Client
from nats.js.errors import NotFoundError

FOLDER = Path(__file__).parent
MOST_SOCKETS, MOST_AT_ONCE, MOST_BYTES = 1000, 8, 64 * 1024
ANSWERS, DEAD, EVENTS, REQUESTS = "answers", "requests-dead", "events", "requests"
_ID = re.compile(r"[0-9a-f]{32}")
_PAGES = {"": "page.html", "page.js": "page.js", "page.css": "page.css"}
_POLICY = {"Content-Security-Policy": "default-src 'self'", "X-Content-Type-Options": "nosniff"}


class Push:
    """Who is connected, and the connection to NATS that all share."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Client
        self._sockets: set[web.WebSocketResponse] = set()

    async def run(self, app: web.Application) -> AsyncIterator[None]:
        # What was said while NATS was away is not said again: pages come again, and ask.
        self._client = await nats.connect(self._url, max_reconnect_attempts=-1, reconnected_cb=self.leave)
        yield
        await self._client.close()

    async def leave(self, _: web.Application | None = None) -> None:
        await asyncio.gather(*(socket.close() for socket in self._sockets))

    async def page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(FOLDER / _PAGES[request.match_info["name"]], headers=_POLICY)

    async def socket(self, request: web.Request) -> web.StreamResponse:
        # Browsers let any site open one, with the cookies of this.
        if request.headers.get("Origin", "").partition("://")[2] != request.host:
            raise web.HTTPForbidden(text="the page is another site's")
        if len(self._sockets) >= MOST_SOCKETS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_SOCKETS} pages are open; come again")
        socket = web.WebSocketResponse(heartbeat=20, max_msg_size=MOST_BYTES)
        self._sockets.add(socket)
        try:
            await socket.prepare(request)
            await self._serve(socket)
        finally:
            self._sockets.discard(socket)
        return socket

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        following: set[asyncio.Task[None]] = set()
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                if (read := _read(message.data)) is None:
                    await socket.send_json({"error": '{"id": 32 HEXADECIMAL DIGITS, "ask": BODY} is expected'})
                elif len(following) >= MOST_AT_ONCE:
                    await socket.send_json({"id": read[0], "error": f"{MOST_AT_ONCE} are under way; wait for one"})
                else:
                    following.add(task := asyncio.create_task(self._follow(socket, *read)))
                    task.add_done_callback(following.discard)
        finally:
            for task in following:
                task.cancel()

    async def _follow(self, socket: web.WebSocketResponse, id_: str, asked: bytes) -> None:
        # Whatever is said of an id, in the order in which it is said.
        said = await self._client.subscribe(f"*.{id_}", pending_msgs_limit=10_000)
        try:
            if (before := await self._kept(id_)) is not None:
                await socket.send_json(before)
                return
            await self._client.jetstream().publish(f"{REQUESTS}.new", asked, headers={"Nats-Msg-Id": id_})
            async for message in said.messages:
                topic = message.subject.partition(".")[0]
                if topic in (EVENTS, ANSWERS, DEAD):
                    await socket.send_json(_as_said(topic, id_, message.data, message.headers or {}))
                if topic in (ANSWERS, DEAD):
                    return
        except ConnectionResetError:
            pass  # the page is gone
        except nats.errors.Error as error:
            await socket.send_json({"id": id_, "error": f"NATS: {error}"})
        finally:
            await said.unsubscribe()

    async def _kept(self, id_: str) -> dict[str, Any] | None:
        for topic in (ANSWERS, DEAD):
            try:
                found = await self._client.jetstream().get_last_msg(topic, f"{topic}.{id_}", direct=True)
            except (NotFoundError, nats.errors.NoRespondersError):
                continue  # no such answer, or no ingress yet that has made the stream for them
            return _as_said(topic, id_, found.data or b"", found.headers or {})
        return None


def _read(text: str) -> tuple[str, bytes] | None:
    """An id and what is asked."""
    try:
        said = json.loads(text)
        id_, ask = said["id"], said["ask"]
        if isinstance(ask, dict) and _ID.fullmatch(id_):
            return id_, json.dumps(ask).encode()
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    return None


def _as_said(topic: str, id_: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    text = body.decode(errors="replace")
    if topic == EVENTS:
        return {"id": id_, "event": text, "execution": headers["x-execution"], "sequence": int(headers["x-sequence"])}
    return {"id": id_, "dead": headers.get("x-dead-reason", "")} if topic == DEAD else {"id": id_, "answer": text}


def application(url: str) -> web.Application:
    """Page and WebSocket, with the NATS at this URL."""
    push, app = Push(url), web.Application()
    app.cleanup_ctx.append(push.run)
    app.on_shutdown.append(push.leave)
    app.add_routes([web.get("/push/socket", push.socket), web.get("/push/{name:|page.js|page.css}", push.page)])
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nats", default="nats://127.0.0.1:4222", help="the ingress's broker")
    parser.add_argument("--port", type=int, default=8081)
    given = parser.parse_args()
    web.run_app(application(given.nats), host="127.0.0.1", port=given.port)
