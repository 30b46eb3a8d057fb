"""InferenceObjectives as this project numbers priorities: the config's, and those of the cluster's pool."""

import asyncio
from collections.abc import Mapping

from balancer.bounds import MAX_PRIORITY
from balancer.config.config import Config
from balancer.discovery.cluster.watch import WatchCounts
from balancer.discovery.inference.objectives import ObjectiveSource, Priorities
from balancer.extproc.kserve import NO_OBJECTIVE, Objectives
from balancer.extproc.picker import Picker


class ClusterObjectives:
    """Which priority an objective's name stands for, as the config says, else the cluster."""

    def __init__(self, config: Config, picker: Picker) -> None:
        """The cluster is asked only where the config names a pool."""
        pods = config.discovery.kubernetes
        wanted = None if pods is None else pods.wanted()
        self._source = ObjectiveSource(wanted.access, wanted.pool) if wanted is not None and wanted.pool else None
        self.counts = WatchCounts() if self._source is None else self._source.counts
        self.priorities: Priorities = {}
        self._picker = picker
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._named = config.requests.objectives
        self._sheddable = config.limits.sheddable_priority
        self._combine()

    async def follow(self, stop: asyncio.Event) -> None:
        if self._source is None:
            return
        async for priorities in self._source.updates(stop):
            self.take(priorities)

    def take(self, priorities: Priorities) -> None:
        self.priorities = priorities
        self._combine()

    def _combine(self) -> None:
        self._picker.objectives = {**numbered(self.priorities, self._sheddable), **self._named}


def numbered(priorities: Mapping[str, int], sheddable: int) -> Objectives:
    """The cluster's priorities (higher is more important, negative is sheddable) as Triton numbers them, by rank.

    The highest becomes 1, the next lower 2, and so on. Negative ones begin at `sheddable`, the first number that is
    sheddable, and others stay before it; 0: none is sheddable, and negative ones go on after the others. Requests
    without an objective have the place of the cluster's 0; while nothing is above that, no number (0).
    """
    if not priorities:
        return {}
    levels = sorted({0, *priorities.values()}, reverse=True)
    above = levels.index(0)
    least = sheddable - 1 if sheddable else MAX_PRIORITY
    numbers = {level: min(place, least) if above else 0 for place, level in enumerate(levels[: above + 1], 1)}
    begin = sheddable or above + 2
    numbers |= {level: min(begin + place, MAX_PRIORITY) for place, level in enumerate(levels[above + 1 :])}
    return {NO_OBJECTIVE: numbers[0], **{name: numbers[priority] for name, priority in priorities.items()}}
