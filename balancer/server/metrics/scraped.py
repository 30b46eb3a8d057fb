"""Metrics whose values are read from their source at the moment of the scrape."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

FamilyT = TypeVar("FamilyT", CounterMetricFamily, GaugeMetricFamily)
Values = float | Mapping[Any, float]
"""One number, or one by the value of the label, by a tuple of them where there are several."""


class Scraped(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def counter(name: str, says: str, values: Values, *labels: str) -> CounterMetricFamily:
    """A counter; `name` without the suffix `_total`."""
    return _filled(CounterMetricFamily, name, says, values, labels)


def gauge(name: str, says: str, values: Values, *labels: str) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily, name, says, values, labels)


def _filled(kind: type[FamilyT], name: str, says: str, values: Values, labels: tuple[str, ...]) -> FamilyT:
    if not isinstance(values, Mapping):
        return kind(name, says, value=float(values))
    family = kind(name, says, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else key, float(value))
    return family
