"""What a watch asks of Kubernetes, answered as the test says."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from balancer.discovery.cluster.api import ListPage, WatchEvent
from support.pods import pod

END = object()
"""Ends a watch, as the server does after some minutes."""


class FakeApi:
    """Stands for `ObjectApi`; the test fills `lists` and `events`, whose exceptions are raised."""

    def __init__(self) -> None:
        self.lists: queue.Queue[list[ListPage] | Exception] = queue.Queue()
        self.events_: queue.Queue[Any] = queue.Queue()
        self.watched: list[str] = []
        self.closed = 0
        self.cuts = threading.Event()

    def pages(self) -> Iterator[ListPage]:
        found = self.lists.get()
        if isinstance(found, Exception):
            raise found
        yield from found

    def events(self, version: str, opened: Callable[[], None]) -> Iterator[WatchEvent]:
        self.watched.append(version)
        first = True
        while (found := self.events_.get()) is not END:
            if isinstance(found, Exception):
                raise found
            if first:
                opened()
            first = False
            yield found

    def cut(self) -> None:
        self.cuts.set()
        self.events_.put(END)
        self.lists.put([])

    def close(self) -> None:
        self.closed += 1

    def list(self, *pods: dict[str, Any], version: str = "1", more: bool = False) -> None:
        self.lists.put([ListPage(list(pods), version, more)])

    def tell_of(self, kind: str, found: dict[str, Any], version: str = "2") -> None:
        """Of any object."""
        self.events_.put(WatchEvent(kind, found, version))

    def tell(self, kind: str, name: str, last: int = 1, version: str = "2", **more: Any) -> None:
        self.events_.put(WatchEvent(kind, pod(name, last, version=version, **more), version))
