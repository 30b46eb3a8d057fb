"""Families of metrics with labels that come and go with the fleet: cheap to count in, bounded, read in slices.

`prometheus_client` keeps a family's series to itself and renders them all at once, at some 10 µs a line, of which a
fleet's models and workers make tens of thousands. Here a family knows its labels, so the series of a worker or model
that is gone can be dropped, and it writes its own lines, in parts between which the event loop can serve requests.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from math import isnan
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from prometheus_client.core import Metric

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
MetricT = TypeVar("MetricT", bound=Metric)
Item = TypeVar("Item")


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count up."""
        self.value += amount


class Exemplar(NamedTuple):
    """One request of those that a bucket counts."""

    trace: str
    """Its id, 32 hexadecimal digits: nothing in it is to be escaped."""
    value: float
    at_s: float
    """Unix time."""

    @property
    def text(self) -> str:
        """As it stands behind a bucket in OpenMetrics."""
        return f' # {{trace_id="{self.trace}"}} {self.value} {self.at_s:.3f}'


class Distribution:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations in each bucket, not cumulative; the last is what is above all bounds."""
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The last one of each bucket that has any."""

    def exemplify(self, exemplar: Exemplar) -> None:
        """Show it with its bucket; it is not counted."""
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar

    def observe(self, value: float) -> None:
        """Take in a value, in the unit of the bounds."""
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
    """All series of one name."""

    def __init__(
        self,
        name: str,
        kind: str,
        documentation: str,
        labels: Sequence[str],
        new: Callable[[], Child],
        samples: int,
        most: int,
    ) -> None:
        """`kind`: Prometheus' word for it; `samples`: how many a series has; `most`: series kept apart."""
        self._family, self._kind, self._documentation = name, kind, documentation
        self._labels = tuple(labels)
        self._new = new
        self._series_a_slice = max(SLICE_SAMPLES // samples, 1)
        self._most = most
        self._children: dict[tuple[str, ...], Child] = {}
        self._rest = (OTHER,) * len(self._labels)

    def __len__(self) -> int:
        return len(self._children)

    def labels(self, *values: str) -> Child:
        """The series with these label values, made on first sight."""
        child = self._children.get(values)
        if child is None:
            if len(self._children) >= self._most:
                values = self._rest
            child = self._children.setdefault(values, self._new())
        return child

    def forget(self, label: str, gone: Collection[str]) -> None:
        """Drop the series whose label has one of these values; no such label, nothing dropped."""
        if gone and label in self._labels:
            place = self._labels.index(label)
            self._children = {values: child for values, child in self._children.items() if values[place] not in gone}

    def series(self) -> list[tuple[tuple[str, ...], Child]]:
        """All of them, by the values of their labels."""
        return list(self._children.items())

    def values(self, label: str) -> set[str]:
        """All values of a label, as far as the family has it."""
        if label not in self._labels:
            return set()
        place = self._labels.index(label)
        return {values[place] for values in self._children}

    def text(self, open_metrics: bool = False) -> Iterator[str]:
        """Yield the family as Prometheus reads it, in slices; `open_metrics`: in that format, with exemplars."""
        # There, a counter's samples have a suffix that the family has not.
        name = self._family.removesuffix("_total") if open_metrics and self._kind == "counter" else self._family
        yield f"# HELP {name} {self._documentation}\n# TYPE {name} {self._kind}\n"
        children = list(self._children.items())
        for start in range(0, len(children), self._series_a_slice):
            part = children[start : start + self._series_a_slice]
            yield "".join(self._lines(self._labels_text(values), child, open_metrics) for values, child in part)

    def _labels_text(self, values: tuple[str, ...]) -> str:
        return ",".join(
            f'{label}="{value.translate(_ESCAPED)}"' for label, value in zip(self._labels, values, strict=True)
        )

    @abstractmethod
    def _lines(self, labels: str, child: Child, exemplars: bool) -> str:
        """The lines of one series, whose labels are these."""


class Counters(Family[Count]):
    """A counter with labels."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], most: int = MOST_SERIES) -> None:
        super().__init__(f"{name}_total", "counter", documentation, labels, Count, 1, most)

    def _lines(self, labels: str, child: Count, exemplars: bool) -> str:
        return f"{self._family}{{{labels}}} {child.value}\n"


class Histograms(Family[Distribution]):
    """A histogram with labels; each series has a sample for each bound, and three more."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float], most: int = MOST_SERIES
    ) -> None:
        samples = len(bounds) + 3
        super().__init__(name, "histogram", documentation, labels, lambda: Distribution(bounds), samples, most)
        self._bounds = [*map(str, bounds), "+Inf"]

    def _lines(self, labels: str, child: Distribution, exemplars: bool) -> str:
        name, before = self._family, labels and f"{labels},"
        counts = list(itertools.accumulate(child.counts))
        shown = {bucket: one.text for bucket, one in child.exemplars.items()} if exemplars else {}
        buckets = [
            f'{name}_bucket{{{before}le="{bound}"}} {count}{shown.get(bucket, "")}\n'
            for bucket, (bound, count) in enumerate(zip(self._bounds, counts, strict=True))
        ]
        return f"{''.join(buckets)}{name}_count{{{labels}}} {counts[-1]}\n{name}_sum{{{labels}}} {child.sum}\n"


def sliced(
    make: Callable[[], MetricT], items: Sequence[Item], add: Callable[[MetricT, Item], None]
) -> Iterator[Metric]:
    """A family of which each item is a sample, in slices; `make` makes it without samples, `add` adds one."""
    for start in range(0, max(len(items), 1), SLICE_SAMPLES):
        family = make()
        for item in items[start : start + SLICE_SAMPLES]:
            add(family, item)
        yield family
