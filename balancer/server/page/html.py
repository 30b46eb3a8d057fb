"""What a browser gets: the page in one file, which loads nothing from anywhere, and each second its document anew, as
server-sent events.
"""

import asyncio
import base64
import contextlib
import hashlib
import html
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import NamedTuple

from aiohttp import web

PERIOD_S = 1.0
_RECONNECT_MS = 2000
"""After which a browser whose connection broke tries again."""


class Page(NamedTuple):
    text: str
    headers: Mapping[str, str]


def page(links: Mapping[str, str]) -> Page:
    folder = files(__package__)
    style, script, frame = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
    items = "".join(_item(path, what) for path, what in links.items())
    text = frame.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).replace("<!--OTHERS-->", items)
    # Of what stands between the tags, to the letter: nothing else of either kind is run or applied.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return Page(text, headers)


def _item(path: str, what: str) -> str:
    link = html.escape(path.removeprefix("/").replace("NAME", ""))
    return f'<li><a href="{link}">{html.escape(path)}</a> {html.escape(what)}</li>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class PageStreams:
    """The pages that are open and updated: a bounded number, each with one document in memory at most that it has not
    read yet.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return self._open

    @property
    def refusal(self) -> str:
        """Why one more is not let in; empty: it is."""
        if self._open < self._most:
            return ""
        return f"{self._most} pages are open and updated, which is as many as may be; close one, or ask for /page.json"

    def stop(self) -> None:
        self._ended.set()

    async def stream(
        self, request: web.BaseRequest, document: Callable[[], bytes], grant: Callable[[], None]
    ) -> web.StreamResponse:
        """Send what `document` returns, again and again; `grant` gives each part its time.

        The next part is made only once the one before is on its way, so a slow reader misses some, and holds none up.
        """
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        response.force_close()
        self._open += 1
        try:
            # A connection that the reader ended, or that was cut off since nothing of it was read.
            with contextlib.suppress(ConnectionResetError):
                await response.prepare(request)
                await response.write(b"retry: %d\n\n" % _RECONNECT_MS)
                while not self._ended.is_set():
                    grant()
                    await response.write(b"data: %s\n\n" % document())
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ended.wait(), PERIOD_S)
        finally:
            self._open -= 1
        return response
