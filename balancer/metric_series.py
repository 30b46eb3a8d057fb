"""Families of metrics with labels that come and go with the fleet: cheap to count in, bounded, read in slices.

`prometheus_client` keeps a family's series to itself and renders them all at once. Here a family knows its labels, so
the series of a worker or model that is gone can be dropped, and it hands out its samples in parts, between which the
event loop can serve requests.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SLICE_SAMPLES = 100
"""Samples handed out at once: some 0.5 ms of work to write them."""
MOST_SERIES = 10_000
"""Of one family. What comes beyond is counted in one series whose labels are all `other`."""
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


class Distribution:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations in each bucket, not cumulative; the last is what is above all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Take in a value, in the unit of the bounds."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class Family(Collector, ABC, Generic[Child]):
    """All series of one name."""

    def __init__(self, labels: Sequence[str], new: Callable[[], Child], samples: int, most: int = MOST_SERIES) -> None:
        """`samples`: how many a series has; `most`: series kept apart."""
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

    def values(self, label: str) -> set[str]:
        """All values of a label, as far as the family has it."""
        if label not in self._labels:
            return set()
        place = self._labels.index(label)
        return {values[place] for values in self._children}

    def collect(self) -> Iterator[Metric]:
        """Yield the family in slices, each a family of the same name with some of the samples; one at least."""
        children = list(self._children.items())
        yield self._metric(children[: self._series_a_slice])
        for start in range(self._series_a_slice, len(children), self._series_a_slice):
            yield self._metric(children[start : start + self._series_a_slice])

    @abstractmethod
    def _metric(self, children: Iterable[tuple[tuple[str, ...], Child]]) -> Metric:
        """The family with these series alone."""


class Counters(Family[Count]):
    """A counter with labels."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], most: int = MOST_SERIES) -> None:
        super().__init__(labels, Count, 1, most)
        self._name, self._documentation = name, documentation

    def _metric(self, children: Iterable[tuple[tuple[str, ...], Count]]) -> Metric:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, count in children:
            family.add_metric(values, count.value)
        return family


class Histograms(Family[Distribution]):
    """A histogram with labels; each series has a sample for each bound, and three more."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float], most: int = MOST_SERIES
    ) -> None:
        super().__init__(labels, lambda: Distribution(bounds), len(bounds) + 3, most)
        self._name, self._documentation = name, documentation
        self._bounds = [*(str(bound) for bound in bounds), "+Inf"]

    def _metric(self, children: Iterable[tuple[tuple[str, ...], Distribution]]) -> Metric:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, child in children:
            cumulative = itertools.accumulate(child.counts)
            buckets = [(bound, float(count)) for bound, count in zip(self._bounds, cumulative, strict=True)]
            family.add_metric(values, buckets, child.sum)
        return family


def sliced(
    make: Callable[[], MetricT], items: Sequence[Item], add: Callable[[MetricT, Item], None]
) -> Iterator[Metric]:
    """A family of which each item is a sample, in slices; `make` makes it without samples, `add` adds one."""
    for start in range(0, max(len(items), 1), SLICE_SAMPLES):
        family = make()
        for item in items[start : start + SLICE_SAMPLES]:
            add(family, item)
        yield family
