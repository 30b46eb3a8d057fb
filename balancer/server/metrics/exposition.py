"""The text that Prometheus scrapes: made in slices while requests are served, at most once a second."""

import asyncio
import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from balancer.server.metrics.scraped import Scraped
from balancer.server.metrics.series import Family

PERIOD_S = 1.0
"""A text is served for so long before another is made, however many clients ask."""
_GZIP_LEVEL = 1
_HEAD_LINES = 2
_END = b"# EOF\n"
PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def wants_open_metrics(accept: str) -> bool:
    """Whether a client that sends this header `Accept` prefers OpenMetrics, which has exemplars, over plain text."""
    try:
        return choose_encoder(accept)[1].startswith("application/openmetrics-text")
    except TypeError:  # the library compares a version that is no number
        return False


class Text(NamedTuple):
    plain: bytes
    gzipped: bytes
    """The same, a twentieth of the size: a large fleet's is megabytes, and sending them takes the loop's time."""


class Exposition:
    def __init__(
        self,
        scraped: Sequence[Callable[[], Iterable[Metric]]],
        families: Sequence[Family[Any]],
        clock: Callable[[], float],
        prepare: Callable[[], None],
        open_metrics: bool = False,
    ) -> None:
        """`scraped`: what makes families as they are when called; `families`: those that count. Both may grow. `clock`
        in seconds, which never goes back; `prepare` is called before a text is made; `open_metrics`: in that format,
        with exemplars.
        """
        self._open = open_metrics
        self._scraped = scraped
        self._families = families
        self._clock = clock
        self._prepare = prepare
        self._text = Text(b"", b"")
        self._made_s = -PERIOD_S
        self._making: asyncio.Task[None] | None = None

    def slices(self) -> Iterator[bytes]:
        """The text in parts, each made when the iterator is advanced."""
        encode: Callable[[Collector], bytes] = openmetrics.generate_latest if self._open else generate_latest
        before = ""
        self._prepare()
        for metric in (metric for families in self._scraped for metric in families()):
            text = encode(Scraped(lambda metric=metric: [metric])).removesuffix(_END)  # type: ignore[misc]  # mypy infers no lambda with a default
            yield text if metric.name != before else text.split(b"\n", _HEAD_LINES)[_HEAD_LINES]
            before = metric.name
        for family in self._families:
            for part in family.text(self._open):
                yield part.encode()
        if self._open:
            yield _END

    async def latest(self) -> Text:
        """The text, no older than a second and what it takes to make one; clients that ask meanwhile share it."""
        if self._clock() - self._made_s >= PERIOD_S:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
                self._making.add_done_callback(self._made)
            # The first client may leave; the others still want it.
            await asyncio.shield(self._making)
        return self._text

    async def _make(self) -> None:
        made_s = self._clock()
        parts = []
        for part in self.slices():
            parts.append(part)
            # Requests that came meanwhile go first.
            await asyncio.sleep(0)
        plain = b"".join(parts)
        # Compressing holds no lock of the interpreter's, so a thread does it beside the loop.
        gzipped = await asyncio.to_thread(gzip.compress, plain, _GZIP_LEVEL)
        self._text, self._made_s = Text(plain, gzipped), made_s

    def _made(self, task: asyncio.Task[None]) -> None:
        self._making = None
        if not task.cancelled():
            # Whoever awaits it gets the error; where all clients have left, this keeps asyncio from logging it.
            task.exception()
