"""Server-sent events: the document again each second to whoever has the page open, as fast as each reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aiohttp import web

PERIOD_S = 1.0
_AGAIN_MS = 2000
"""After which a browser whose connection broke tries again."""


class Watchers:
    """Who has the page open: a bounded number, each with one document in memory at most that it has not read yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[object] = set()
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def refusal(self) -> str:
        """Why one more is not let in; empty: it is."""
        if len(self._open) < self._most:
            return ""
        return (
            f"{self._most} pages are open and updated (admin.max_watchers); close one, raise the limit, "
            "or ask for /page.json"
        )

    def stop(self) -> None:
        """End all."""
        self._ended.set()

    async def stream(
        self, request: web.BaseRequest, document: Callable[[], bytes], grant: Callable[[], None]
    ) -> web.StreamResponse:
        """Send what `document` returns, again and again; `grant` gives each part its time.

        The next part is made only once the one before is on its way, so a slow reader misses some, and holds none up.
        """
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        response.force_close()
        watcher = object()
        self._open.add(watcher)
        try:
            # A connection that the reader ended, or that was cut off since nothing of it was read.
            with contextlib.suppress(ConnectionResetError):
                await response.prepare(request)
                await response.write(b"retry: %d\n\n" % _AGAIN_MS)
                while not self._ended.is_set():
                    grant()
                    await response.write(b"data: %s\n\n" % document())
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ended.wait(), PERIOD_S)
        finally:
            self._open.discard(watcher)
        return response
