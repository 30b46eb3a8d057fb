"""Workers from pods: those of a selector, or of an InferencePool, by a watch of the pool and one of its pods."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, ClassVar

from balancer.discovery.cluster.api import ClusterAccess, ObjectApi
from balancer.discovery.cluster.watch import ObjectWatch, WatchCounts, newest_of
from balancer.discovery.inference.pool import POOLS, Pool, PoolRefusedError, read_pool
from balancer.discovery.pods.watch import PodCounts, PodsWanted, PodWatch
from balancer.discovery.workers import Ports, WorkerSpec

_POOL_FIELD = "inference_pool"


class PoolCounts(WatchCounts):
    def __init__(self) -> None:
        super().__init__()
        self.is_followed = False
        """Whether the pool in force is the one in the cluster."""
        self.changes = 0


class PoolWatch(ObjectWatch[Pool | PoolRefusedError]):
    """Tells `publish` of the pool, first as it is and then after every change. One that is gone or cannot be used is no
    change: the last good one stays in force."""

    what: ClassVar[str] = "InferencePool"

    def __init__(
        self,
        access: ClusterAccess,
        ports: Ports,
        publish: Callable[[Pool], None],
        counts: PoolCounts,
        connect: Callable[[ClusterAccess], ObjectApi] = ObjectApi,
    ) -> None:
        """`access`: the pool's; `ports` as of `read_pool`."""
        super().__init__(access, 1, counts, connect)
        self._name = access.name
        self._ports = ports
        self._publish = publish
        self._published: Pool | None = None
        self._missed = ""
        """Why the pool in the cluster is not in force; empty: it is. Gateways write into its status again and again,
        which is not worth another line."""
        self._pool_counts = counts

    def _read(self, found: Any) -> Pool | PoolRefusedError:
        try:
            return read_pool(found, self._ports)
        except PoolRefusedError as error:
            return error

    def _replace(self, items: list[Pool | PoolRefusedError], beyond: bool) -> None:
        del beyond  # there is one of a name
        if items:
            self._take(items[0])
        else:
            self._miss("it is not there; create it, or name another in inference_pool")

    def _put(self, kind: str, item: Pool | PoolRefusedError) -> None:
        if kind == "DELETED":
            self._miss("it was deleted; create it anew, or name another in inference_pool")
        else:
            self._take(item)

    def _has_room_again(self) -> bool:
        return False

    def _stays(self) -> str:
        return "there is no pool yet" if self._published is None else "the pool known last stays in force"

    def _take(self, pool: Pool | PoolRefusedError) -> None:
        if isinstance(pool, PoolRefusedError):
            self._miss(str(pool))
            return
        self._pool_counts.is_followed, self._missed = True, ""
        if pool != self._published:
            self._published = pool
            self._pool_counts.changes += 1
            self._say(logging.INFO, f"the pods of InferencePool {self._name} are those with {pool.label_selector}")
            self._publish(pool)

    def _miss(self, why: str) -> None:
        self._pool_counts.is_followed = False
        if why != self._missed:
            self._missed = why
            self._invalid(_POOL_FIELD, f"InferencePool {self._name}", f"{why}; until then {self._stays()}")


class PoolPods:
    """The workers of a pool, for `publish`: by a watch of the pool, and from the first pool on by one of its pods."""

    def __init__(
        self,
        wanted: PodsWanted,
        publish: Callable[[tuple[WorkerSpec, ...]], None],
        counts: PodCounts,
        of_pool: PoolCounts,
        connect: Callable[[ClusterAccess], ObjectApi] = ObjectApi,
    ) -> None:
        self._pods = PodWatch(wanted, publish, counts, connect)
        access = replace(wanted.access, label_selector="", resource=POOLS, name=wanted.pool)
        self._pool = PoolWatch(access, wanted.ports, self._follow, of_pool, connect)
        self._lock = threading.Lock()
        self._begun = self._stopped = False

    def start(self) -> None:
        self._pool.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        self._pool.stop()
        self._pods.stop()

    def _follow(self, pool: Pool) -> None:
        with self._lock:
            if self._stopped:
                return
            self._pods.follow_pool(pool.label_selector, pool.ports)
            if not self._begun:
                self._begun = True
                self._pods.start()


class PodSource:
    """A `WorkerSource` that watches the pods of a namespace. While the API is away, it yields nothing."""

    def __init__(self, wanted: PodsWanted, connect: Callable[[ClusterAccess], ObjectApi] = ObjectApi) -> None:
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
