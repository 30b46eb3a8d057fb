"""What becomes of models whose requests two versions share: counted, and told when a new version does worse."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.core.trials.split import Split, Splits

logger = logging.getLogger(__name__)


class SplitCounts(Collector):
    """Read at the moment of the scrape."""

    def __init__(self, splits: Splits) -> None:
        self._splits = splits

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        labels = ["model", "version"]
        requests = CounterMetricFamily("balancer_split_requests", "Requests that a split version got", labels=labels)
        errors = CounterMetricFamily("balancer_split_errors", "Those of them that failed", labels=labels)
        returned = GaugeMetricFamily(
            "balancer_split_returned", "1: the new version did worse, and gets no requests", labels=["model"]
        )
        left = CounterMetricFamily(
            "balancer_split_left",
            "Requests of split models that name no version, and into which none could be written",
            labels=["model", "reason"],
        )
        for model, split in self._splits.of.items():
            for new, version in ((False, split.settings.old), (True, split.settings.new)):
                requests.add_metric([model, version], split.arms[new].requests)
                errors.add_metric([model, version], split.arms[new].errors)
            returned.add_metric([model], bool(split.returned))
        for (model, reason), count in self._splits.left.items():
            left.add_metric([model, reason], count)
        yield from (requests, errors, returned, left)


def so_far(splits: Splits) -> list[dict[str, Any]]:
    """What became of each split model's versions since the split began, the old one first."""
    return [
        {
            "model": model,
            "versions": [
                {"version": version, "requests": split.arms[new].requests, "errors": split.arms[new].errors}
                for new, version in ((False, split.settings.old), (True, split.settings.new))
            ],
            "returned": split.returned,
        }
        for model, split in splits.of.items()
    ]


def version_given(split: Split, key: int | None) -> str:
    """The version that a request gets which names none; empty: each is drawn for."""
    if key is None and 0 < split.share < 1:
        return ""
    # Another of the same seed: who asks takes no part in the split.
    return Split(split.settings, split.seed, returned=split.returned).draw(key).version


def tell_return(split: Split) -> None:
    """A model's new version does worse."""
    logger.warning("all requests for model %r go to the old version again: %s", split.model, split.returned)
