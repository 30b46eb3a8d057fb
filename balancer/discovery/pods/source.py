"""Workers from pods: a `WorkerSource` over the threads that watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from balancer.discovery.cluster.api import Access, ObjectApi
from balancer.discovery.cluster.newest import newest_of
from balancer.discovery.inference.pods import PoolCounts, PoolPods
from balancer.discovery.pods.watch import PodCounts, PodsWanted, PodWatch
from balancer.discovery.workers import WorkerSpec


class PodSource:
    """A `WorkerSource` that watches the pods of a namespace. While the API is away, it yields nothing."""

    def __init__(self, wanted: PodsWanted, connect: Callable[[Access], ObjectApi] = ObjectApi) -> None:
        self._wanted = wanted
        self._connect = connect
        self.counts = PodCounts()
        self.pool_counts = PoolCounts() if wanted.pool else None

    def updates(self, stop: asyncio.Event) -> AsyncGenerator[tuple[WorkerSpec, ...], None]:
        """The list of workers, first as it is and then after every change, until `stop` is set. Of lists that come
        faster than they are taken, the newest.
        """
        return newest_of(self._watch, stop)

    def _watch(self, publish: Callable[[tuple[WorkerSpec, ...]], None]) -> PodWatch | PoolPods:
        if self.pool_counts is None:
            return PodWatch(self._wanted, publish, self.counts, self._connect)
        return PoolPods(self._wanted, publish, self.counts, self.pool_counts, self._connect)
