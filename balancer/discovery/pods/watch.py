"""The watch of pods, and the list of workers that follows from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from balancer.discovery.cluster.api import Access, ObjectApi
from balancer.discovery.cluster.watch import FIELD, ObjectWatch, WatchCounts
from balancer.discovery.pods.pod import FREE, Complaint, HeldPorts, MalformedError, Pod, read_pod
from balancer.discovery.pods.table import PodTable
from balancer.discovery.workers import TRITON_PORTS, Ports, WorkerSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodsWanted:
    """Which pods are workers."""

    access: Access
    ports: Ports = TRITON_PORTS
    """Of pods that do not say."""
    max_pods: int = 1000
    pool: str = ""
    """Name of the InferencePool that says which pods, by which ports; empty: `access` does."""


class PodCounts(WatchCounts):
    """What the watch of pods counts beside."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: Mapping[str, int] = {}
        """By what they are, see `PodTable.counts`."""


class PodWatch(ObjectWatch[Pod]):
    """Tells `publish` of the workers, first as they are and then after every change, from a thread of its own."""

    what: ClassVar[str] = "pods"

    def __init__(
        self,
        wanted: PodsWanted,
        publish: Callable[[tuple[WorkerSpec, ...]], None],
        counts: PodCounts,
        connect: Callable[[Access], ObjectApi] = ObjectApi,
    ) -> None:
        super().__init__(wanted.access, wanted.max_pods, counts, connect)
        self._publish = publish
        self._pod_counts = counts
        self._ports, self._held = wanted.ports, FREE
        self._table = PodTable(wanted.max_pods, self._complain_of)
        self._published: tuple[WorkerSpec, ...] | None = None
        self._was_beyond = False

    def follow_pool(self, label_selector: str, held: HeldPorts) -> None:
        """Other pods, or other ports, are wanted, from any thread; the workers stay until those pods are listed."""

        def turns() -> None:
            self._held = held

        self.follow(replace(self._wanted, label_selector=label_selector), turns)

    def _read(self, found: object) -> Pod | None:
        try:
            return read_pod(found, self._ports, self._held)
        except MalformedError as error:
            self._complain("pod", "pod ?", f"it is not readable ({error}); the pod is left out")
            return None

    def _replace(self, items: list[Pod], beyond: bool) -> None:
        self._table.replace(items, beyond=beyond)
        self._tell()

    def _put(self, kind: str, item: Pod) -> None:
        """Tells only where the workers may have changed."""
        if self._table.remove(item.name) if kind == "DELETED" else self._table.put(item):
            self._tell()

    def _has_room_again(self) -> bool:
        return self._table.has_room_again

    def _stays(self) -> str:
        return "there is no list of workers yet" if self._published is None else "the workers known last stay"

    def _tell(self) -> None:
        workers = self._table.workers()
        self._pod_counts.pods = dict(self._table.counts)
        if self._table.beyond and not self._was_beyond:
            what = "%s: more than %d pods match, and the others are left out; raise max_pods there"
            logger.warning(what, FIELD, self._most)
        self._was_beyond = self._table.beyond
        if workers != self._published:
            self._published = workers
            self._publish(workers)

    def _complain_of(self, pod: str, complaint: Complaint) -> None:
        self._complain(complaint.field, f"pod {pod}", complaint.text)
