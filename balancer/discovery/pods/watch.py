"""The watch of pods, which of them are workers, and the list that follows from that."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from balancer.discovery.cluster.api import ClusterAccess, ObjectApi
from balancer.discovery.cluster.watch import FIELD, ObjectWatch, WatchCounts
from balancer.discovery.pods.pod import FREE, HeldPorts, InvalidValue, MalformedError, Pod, read_pod
from balancer.discovery.workers import TRITON_PORTS, Ports, WorkerSpec

logger = logging.getLogger(__name__)


class PodTable:
    """The pods by name, at most `most` of them.

    A pod is a worker from the first time that it is Ready. From then on it stays one until it has ended or is deleted:
    while it is not Ready, or terminates, it drains.
    """

    def __init__(self, most: int, on_invalid: Callable[[str, InvalidValue], None]) -> None:
        """`on_invalid`: called with a pod's name for each new value that is not taken."""
        self._most = most
        self._on_invalid = on_invalid
        self._pods: dict[str, Pod] = {}
        self._was_ready: dict[str, str] = {}
        """By name the uid of pods that were Ready once."""
        self.beyond = False
        self.counts: Mapping[str, int] = {}
        """Pods by what they are: `ready`, `draining`, and left out as `not_ready`, `not_running`, `refused` or
        `duplicate`. Another object at each change, so that other threads may read it."""

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def has_room_again(self) -> bool:
        """Whether there is room for pods that were left out: only a new list tells of them."""
        return self.beyond and len(self._pods) < self._most

    def replace(self, pods: Iterable[Pod], *, beyond: bool) -> None:
        """Take a whole list; `beyond`: there were more."""
        before, self._pods = self._pods, {}
        self.beyond = beyond
        for pod in pods:
            self._keep(pod, before.get(pod.name))
        self._was_ready = {name: uid for name, uid in self._was_ready.items() if name in self._pods}

    def put(self, pod: Pod) -> bool:
        """A pod that is new or has changed; whether that concerns the workers."""
        before = self._pods.get(pod.name)
        if before is None and len(self._pods) >= self._most:
            self.beyond = True
            return True
        self._keep(pod, before)
        return pod != before

    def remove(self, name: str) -> bool:
        """A pod that is gone, or that the selector no longer matches; whether that concerns the workers."""
        self._was_ready.pop(name, None)
        return self._pods.pop(name, None) is not None

    def workers(self) -> tuple[WorkerSpec, ...]:
        """The workers, by name; of pods with one endpoint the one that is ready, then the youngest."""
        counts: Counter[str] = Counter()
        listed = []
        for pod in self._pods.values():
            if pod.worker is None or self._was_ready.get(pod.name) != pod.uid:
                # One that terminates and never was Ready is none either.
                counts["not_ready" if pod.worker is not None else pod.state] += 1
            else:
                draining = pod.worker.draining or pod.state != "ready"
                # model_copy is as expensive as ten comparisons, and most pods are ready.
                same = draining == pod.worker.draining
                listed.append((pod, pod.worker if same else pod.worker.model_copy(update={"draining": True})))
        # Young before old, then ready before draining: sorting keeps the order of equals.
        listed.sort(key=lambda each: (each[0].created, each[0].name), reverse=True)
        listed.sort(key=lambda each: each[1].draining)
        taken: set[str] = set()
        workers = []
        for _, worker in listed:
            endpoints = {worker.grpc_endpoint, worker.http_endpoint}
            if endpoints & taken:
                counts["duplicate"] += 1
                continue
            taken |= endpoints
            workers.append(worker)
            counts["draining" if worker.draining else "ready"] += 1
        self.counts = counts
        return tuple(sorted(workers, key=lambda worker: worker.name))

    def _keep(self, pod: Pod, before: Pod | None) -> None:
        known = before.invalid_values if before is not None and before.uid == pod.uid else ()
        for invalid in pod.invalid_values:
            if invalid not in known:
                self._on_invalid(pod.name, invalid)
        self._pods[pod.name] = pod
        if pod.was_ready:
            self._was_ready[pod.name] = pod.uid
        elif pod.state == "not_running" or self._was_ready.get(pod.name) != pod.uid:
            # It has ended, or is another pod of the name.
            self._was_ready.pop(pod.name, None)


@dataclass(frozen=True, slots=True)
class PodsWanted:
    access: ClusterAccess
    ports: Ports = TRITON_PORTS
    """Of pods that do not say."""
    max_pods: int = 1000
    pool: str = ""
    """Name of the InferencePool that says which pods, by which ports; empty: `access` does."""


class PodCounts(WatchCounts):
    def __init__(self) -> None:
        super().__init__()
        self.pods: Mapping[str, int] = {}


class PodWatch(ObjectWatch[Pod]):
    """Tells `publish` of the workers, first as they are and then after every change, from a thread of its own."""

    what: ClassVar[str] = "pods"

    def __init__(
        self,
        wanted: PodsWanted,
        publish: Callable[[tuple[WorkerSpec, ...]], None],
        counts: PodCounts,
        connect: Callable[[ClusterAccess], ObjectApi] = ObjectApi,
    ) -> None:
        super().__init__(wanted.access, wanted.max_pods, counts, connect)
        self._publish = publish
        self._pod_counts = counts
        self._ports, self._held = wanted.ports, FREE
        self._table = PodTable(wanted.max_pods, self._invalid_value)
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
            self._invalid("pod", "pod ?", f"it is not readable ({error}); the pod is left out")
            return None

    def _replace(self, items: list[Pod], beyond: bool) -> None:
        self._table.replace(items, beyond=beyond)
        self._publish_changes()

    def _put(self, kind: str, item: Pod) -> None:
        if self._table.remove(item.name) if kind == "DELETED" else self._table.put(item):
            self._publish_changes()

    def _has_room_again(self) -> bool:
        return self._table.has_room_again

    def _stays(self) -> str:
        return "there is no list of workers yet" if self._published is None else "the workers known last stay"

    def _publish_changes(self) -> None:
        workers = self._table.workers()
        self._pod_counts.pods = dict(self._table.counts)
        if self._table.beyond and not self._was_beyond:
            what = "%s: more than %d pods match, and the others are left out; narrow label_selector"
            logger.warning(what, FIELD, self._most)
        self._was_beyond = self._table.beyond
        if workers != self._published:
            self._published = workers
            self._publish(workers)

    def _invalid_value(self, pod: str, invalid: InvalidValue) -> None:
        self._invalid(invalid.field, f"pod {pod}", invalid.text)
