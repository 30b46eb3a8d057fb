"""A thread that lists pods and then watches them: list, watch from there, list anew where what was missed is no longer
told.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from balancer.discovery.pods.api import Access, ApiError, PodApi
from balancer.discovery.pods.pod import Complaint, MalformedError, Pod, read_pod
from balancer.discovery.pods.table import PodTable
from balancer.discovery.workers import TRITON_PORTS, Ports, WorkerSpec

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 30.0
_RELIST_AFTER_S = 1800.0
"""A list in between heals what a watch may have missed, such as all that an etcd restored from a backup forgot."""
_KEEPS_VERSION = frozenset(("unreachable", "unauthorized", "forbidden"))
"""Failures that say nothing of the resource version. A server that has just started refuses everybody for a moment."""
_MOST_LINES_PER_S = 20
"""Of complaints: whoever may change pods can bring about as many as they like. All are counted."""


@dataclass(frozen=True, slots=True)
class PodsWanted:
    """Which pods are workers."""

    access: Access
    ports: Ports = TRITON_PORTS
    """Of pods that do not say."""
    max_pods: int = 1000


class WatchCounts:
    """What the watch counts; written by its thread, read by any."""

    def __init__(self) -> None:
        self.connected = False
        """Whether the list in force is followed now."""
        self.lists: Counter[str] = Counter()
        """Whole lists by why: `start`, `expired`, `failed`, `room`, `age`."""
        self.failures: Counter[str] = Counter()
        """By cause."""
        self.events = 0
        """Of pods; bookmarks do not count."""
        self.complaints: Counter[str] = Counter()
        """Values that were not taken, by field."""
        self.pods: dict[str, int] = {}
        """By what they are, see `PodTable.counts`."""


class PodWatch:
    """Tells `publish` of the workers, first as they are and then after every change, from a thread of its own."""

    def __init__(
        self,
        wanted: PodsWanted,
        publish: Callable[[tuple[WorkerSpec, ...]], None],
        counts: WatchCounts,
        connect: Callable[[Access], PodApi] = PodApi,
    ) -> None:
        self._wanted = wanted
        self._publish = publish
        self._counts = counts
        self._connect = connect
        self._table = PodTable(wanted.max_pods, self._complain)
        self._api: PodApi | None = None
        self._version = ""
        """Up to which all is known; empty: list anew."""
        self._published: tuple[WorkerSpec, ...] | None = None
        self._said: str | None = None
        """The cause that the log was told of last; None: all is well."""
        self._was_beyond = False
        self._failures = 0
        """In a row, without a watch that told something."""
        self._listed_s = 0.0
        self._lines_since_s, self._lines = 0.0, 0
        """Complaints in the log, within the second that began then."""
        self._stop = threading.Event()
        # A daemon: the process may end while the network hangs.
        self._thread = threading.Thread(target=self._run, name="pod-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait for the thread, which the network may hold for some seconds."""
        self._stop.set()
        if (api := self._api) is not None:
            api.cut()

    def _run(self) -> None:
        why = "start"
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._version = self._list(why)
                why = self._watch()
            except ApiError as error:
                why = self._after(error)
            except Exception:
                # A mistake of the balancer's must not end discovery: the list in force stays, and a new one may do.
                logger.exception("discovery.kubernetes: a mistake of the balancer's; the pods are listed anew")
                self._counts.failures["mistake"] += 1
                self._version, why = "", "failed"
                self._wait()
        self._close()

    def _after(self, error: ApiError) -> str:
        """After a failure: wait, and say why the pods are listed anew if they are."""
        if self._stop.is_set():
            return "failed"
        self._counts.failures[error.cause] += 1
        if error.cause == "expired":
            logger.info("discovery.kubernetes: %s, so the pods are listed anew", error)
            if self._failures:
                self._wait()
            self._failures += 1
            self._version = ""
            return "expired"
        self._counts.connected = False
        if error.cause != self._said:
            self._said = error.cause
            stay = "there is no list of workers yet" if self._published is None else "the workers known last stay"
            logger.warning("discovery.kubernetes: no word from the API, %s; trying again: %s", stay, error)
        self._close()
        self._wait()
        # Events that were missed meanwhile follow, or 410 says that they are too old. What the server itself failed at
        # is not asked again.
        if error.cause not in _KEEPS_VERSION:
            self._version = ""
        return "failed"

    def _list(self, why: str) -> str:
        """Returns the resource version."""
        api = self._connected()
        pods: list[Pod] = []
        version, most = "", self._wanted.max_pods
        beyond = False
        for page in api.pages():
            version = page.version
            found = [pod for pod in map(self._read, page.pods) if pod is not None]
            beyond = len(pods) + len(found) > most or (page.more and len(pods) + len(found) == most)
            pods += found[: most - len(pods)]
            if beyond:
                break
            if self._stop.is_set():
                return version
        self._table.replace(pods, beyond=beyond)
        self._counts.lists[why] += 1
        self._listed_s = time.monotonic()
        self._tell()
        self._well()
        return version

    def _watch(self) -> str:
        """Follow the pods until the watch ends; why they are listed anew, if they are."""
        api = self._connected()
        began_s, told = time.monotonic(), 0
        for event in api.events(self._version, self._well):
            self._version = event.version
            told += 1
            self._failures = 0
            if event.kind != "BOOKMARK":
                self._counts.events += 1
                if self._apply(event.kind, event.pod):
                    self._tell()
            if self._stop.is_set():
                break
            if self._table.has_room_again:
                self._version = ""
                return "room"
        if not told and time.monotonic() - began_s < 1.0 and not self._stop.is_set():
            raise ApiError("server", "the watch ended as soon as it began")
        self._failures = 0
        if time.monotonic() - self._listed_s > _RELIST_AFTER_S * random.uniform(0.8, 1.2):
            self._version = ""
            return "age"
        return "failed"

    def _apply(self, kind: str, found: object) -> bool:
        """Whether the workers may have changed."""
        pod = self._read(found)
        if pod is None:
            return False
        return self._table.remove(pod.name) if kind == "DELETED" else self._table.put(pod)

    def _read(self, found: object) -> Pod | None:
        try:
            return read_pod(found, self._wanted.ports)
        except MalformedError as error:
            self._complain("?", Complaint("pod", f"it is not readable ({error}); the pod is left out"))
            return None

    def _tell(self) -> None:
        workers = self._table.workers()
        self._counts.pods = dict(self._table.counts)
        if self._table.beyond and not self._was_beyond:
            what = "discovery.kubernetes: more than %d pods match, and the others are left out; raise max_pods there"
            logger.warning(what, self._wanted.max_pods)
        self._was_beyond = self._table.beyond
        if workers != self._published:
            self._published = workers
            self._publish(workers)

    def _well(self) -> None:
        self._counts.connected = True
        if self._said is not None:
            self._said = None
            logger.info("discovery.kubernetes: the API answers again")

    def _complain(self, pod: str, complaint: Complaint) -> None:
        self._counts.complaints[complaint.field] += 1
        if time.monotonic() - self._lines_since_s > 1.0:
            self._lines_since_s, self._lines = time.monotonic(), 0
        self._lines += 1
        if self._lines <= _MOST_LINES_PER_S:
            logger.warning("discovery.kubernetes: pod %s: %s", pod, complaint.text)

    def _wait(self) -> None:
        """Longer after each failure in a row, and drawn, so that the balancers of a fleet do not come all at once."""
        longest_s = min(_FIRST_WAIT_S * 2**self._failures, _LONGEST_WAIT_S)
        self._failures = min(self._failures + 1, 16)
        self._stop.wait(random.uniform(longest_s / 2, longest_s))

    def _connected(self) -> PodApi:
        if self._api is None:
            self._api = self._connect(self._wanted.access)
            if self._stop.is_set():
                self._api.cut()
        return self._api

    def _close(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            api.close()
