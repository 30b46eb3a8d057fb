"""Families of metrics with labels that come and go with the fleet: cheap to count in, bounded, read in slices.

`prometheus_client` keeps a family's series to itself and renders them all at once, at some 10 µs a line, of which a
fleet's models and workers make tens of thousands. Here a family knows its labels, so the series of a worker or model
that is gone can be dropped, and it writes its own lines, in parts between which the event loop can serve requests.
"""

import asyncio
import gzip
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import isnan
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from balancer.server.metrics.scraped import Scraped

SLICE_SAMPLES = 100
"""Samples written at once: at most some milliseconds of work."""
MOST_SERIES = 10_000
"""Of one family. What comes beyond is counted in one series whose labels are all `other`."""
_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_MANY = 32
"""Values from which on NumPy is the quicker to count them."""
OTHER = "other"
"""Label of what a label of its own would be too much for."""

Child = TypeVar("Child")


class Count:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Exemplar(NamedTuple):
    trace: str
    """Its id, 32 hexadecimal digits: nothing in it is to be escaped."""
    value: float
    at_s: float
    """Unix time."""


class SeriesDistribution:
    __slots__ = ("_bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations in each bucket, not cumulative; the last is what is above all bounds."""
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def exemplify(self, exemplar: Exemplar) -> None:
        """Show it with its bucket; it is not counted."""
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Take in many; NaN is none."""
        if len(values) < _MANY:
            for value in values:
                if not isnan(value):
                    self.observe(value)
            return
        known = np.asarray(values)
        known = known[~np.isnan(known)]
        buckets, counts = np.unique(np.searchsorted(self._bounds, known), return_counts=True)
        for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            self.counts[bucket] += count
        self.sum += float(known.sum())


class Family(ABC, Generic[Child]):
    kind: str

    def __init__(self, name: str, says: str, labels: Sequence[str], new: Callable[[], Child], samples: int) -> None:
        self.name, self._says, self.label_names = name, says, tuple(labels)
        self._new = new
        self._series_a_slice = max(SLICE_SAMPLES // samples, 1)
        self._children: dict[tuple[str, ...], Child] = {}

    def __len__(self) -> int:
        return len(self._children)

    def labels(self, *values: str) -> Child:
        child = self._children.get(values)
        if child is None:
            if len(self._children) >= MOST_SERIES:
                values = (OTHER,) * len(self.label_names)
            child = self._children.setdefault(values, self._new())
        return child

    def series(self) -> list[tuple[tuple[str, ...], Child]]:
        return list(self._children.items())

    def keep(self, label: str, there: Collection[str]) -> None:
        """Drop the series whose value of this label, if the family has it, is neither there nor empty nor `other`."""
        if label in self.label_names:
            place, kept = self.label_names.index(label), {"", OTHER, *there}
            self._children = {values: child for values, child in self._children.items() if values[place] in kept}

    def text(self, open_metrics: bool = False) -> Iterator[str]:
        """Yield the family as Prometheus reads it, in slices; `open_metrics`: in that format, with exemplars."""
        # There, a counter's samples have a suffix that the family has not.
        name = self.name.removesuffix("_total") if open_metrics and self.kind == "counter" else self.name
        yield f"# HELP {name} {self._says}\n# TYPE {name} {self.kind}\n"
        children = self.series()
        for start in range(0, len(children), self._series_a_slice):
            part = children[start : start + self._series_a_slice]
            yield "".join(self._lines(self._labels_text(values), child, open_metrics) for values, child in part)

    def _labels_text(self, values: tuple[str, ...]) -> str:
        named = zip(self.label_names, values, strict=True)
        return ",".join(f'{label}="{value.translate(_ESCAPED)}"' for label, value in named)

    @abstractmethod
    def _lines(self, labels: str, child: Child, exemplars: bool) -> str: ...


class Counters(Family[Count]):
    kind = "counter"

    def __init__(self, name: str, says: str, *labels: str) -> None:
        super().__init__(f"{name}_total", says, labels, Count, samples=1)

    def totals(self) -> dict[str, float]:
        return {".".join(values): child.value for values, child in self._children.items()}

    def _lines(self, labels: str, child: Count, exemplars: bool) -> str:
        return f"{self.name}{{{labels}}} {child.value}\n"


class Histograms(Family[SeriesDistribution]):
    """A histogram with labels; each series has a sample for each bound, and three more."""

    kind = "histogram"

    def __init__(self, name: str, says: str, bounds: Sequence[float], *labels: str) -> None:
        super().__init__(name, says, labels, lambda: SeriesDistribution(bounds), samples=len(bounds) + 3)
        self._bounds = [*map(str, bounds), "+Inf"]

    def _lines(self, labels: str, child: SeriesDistribution, exemplars: bool) -> str:
        lines, count = [], 0
        before = labels and f"{labels},"
        for bucket, (bound, observed) in enumerate(zip(self._bounds, child.counts, strict=True)):
            count += observed
            shown = ""
            if exemplars and (one := child.exemplars.get(bucket)):
                shown = f' # {{trace_id="{one.trace}"}} {one.value} {one.at_s:.3f}'
            lines.append(f'{self.name}_bucket{{{before}le="{bound}"}} {count}{shown}\n')
        return f"{''.join(lines)}{self.name}_count{{{labels}}} {count}\n{self.name}_sum{{{labels}}} {child.sum}\n"


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
