"""A thread that lists objects of one kind and then watches them from there on, and lists them anew where the API no
longer tells what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from balancer.discovery.cluster.api import ApiError, Cause, ClusterAccess, ObjectApi

logger = logging.getLogger(__name__)

FIELD = "discovery.kubernetes"
THREAD = "watch of"
_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 30.0
_RELIST_AFTER_S = 1800.0
"""A list in between heals what a watch may have missed, such as all that an etcd restored from a backup forgot."""
_KEEPS_VERSION = frozenset(("unreachable", "unauthorized", "forbidden"))
"""Failures that say nothing of the resource version. A server that has just started refuses everybody for a moment."""
_MOST_LINES_PER_S = 20

Item = TypeVar("Item")


class WatchCounts:
    """What a watch counts; written by its thread, read by any."""

    def __init__(self) -> None:
        self.connected = False
        self.lists: Counter[str] = Counter()
        """Whole lists by why: `start`, `expired`, `failed`, `room`, `age`, `selector`."""
        self.failures: Counter[str] = Counter()
        self.events = 0
        """Of objects; bookmarks do not count."""
        self.invalid_values: Counter[str] = Counter()


class ObjectWatch(ABC, Generic[Item]):
    """Keeps what `_read` makes of each object, first as they are and then after every change, from a thread of its own.

    All methods that begin with an underscore are called in the thread.
    """

    what: ClassVar[str]
    expected: ClassVar[frozenset[Cause]] = frozenset()
    """Failures that are no reason for a warning."""

    def __init__(
        self,
        access: ClusterAccess,
        most: int,
        counts: WatchCounts,
        connect: Callable[[ClusterAccess], ObjectApi] = ObjectApi,
    ) -> None:
        """`most`: objects that a list may have; others are not read."""
        self._most = most
        self._counts = counts
        self._connect = connect
        self._lock = threading.Lock()
        """Over the next five."""
        self._wanted = access
        self._turns: Callable[[], None] = lambda: None
        self._followed = access
        """What is followed until the thread sees that something else is wanted."""
        self._api: ObjectApi | None = None
        self._ends = False
        self._wake = threading.Event()
        self._version = ""
        """Up to which all is known; empty: list anew."""
        self._logged_cause: str | None = None
        """The cause that was logged last; None: the API answers."""
        self._failures = 0
        """In a row, without a watch that told something."""
        self._listed_s = 0.0
        self._lines_since_s, self._lines = 0.0, 0
        """Of the log, about objects, within the second that began then."""
        # A daemon: the process may end while the network hangs.
        self._thread = threading.Thread(target=self._run, name=f"{THREAD} {self.what}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait for the thread, which the network may hold for some seconds."""
        with self._lock:
            self._ends = True
            self._interrupt()

    def follow(self, access: ClusterAccess, turns: Callable[[], None]) -> None:
        """Follow other objects, from any thread; those known stay until the others are listed. `turns` is called in the
        watch's thread between the last of the former and the first of the others."""
        with self._lock:
            # A copy: the same objects may have to be read anew.
            self._wanted, self._turns = replace(access), turns
            self._interrupt()

    @abstractmethod
    def _read(self, found: object) -> Item | None:
        """What is kept of an object; None: nothing."""

    @abstractmethod
    def _replace(self, items: list[Item], beyond: bool) -> None:
        """A whole list; `beyond`: there are more."""

    @abstractmethod
    def _put(self, kind: str, item: Item) -> None:
        """An object that came, changed or, where the kind is `DELETED`, went."""

    @abstractmethod
    def _has_room_again(self) -> bool: ...

    @abstractmethod
    def _stays(self) -> str: ...

    @property
    def _is_interrupted(self) -> bool:
        return self._ends or self._wanted is not self._followed

    def _interrupt(self) -> None:
        self._wake.set()
        if self._api is not None:
            self._api.cut()

    def _run(self) -> None:
        why = "start"
        while not self._ends:
            try:
                if self._turn() and self._listed_s:
                    why = "selector"
                if not self._version:
                    self._version = self._list(why)
                why = self._watch()
            except ApiError as error:
                why = self._after(error, why)
            except Exception:
                # An internal error must not end discovery: what is in force stays, and a new list may do.
                logger.exception("%s: a mistake of the balancer's; the %s are listed anew", FIELD, self.what)
                self._counts.failures["mistake"] += 1
                self._version, why = "", "failed"
                self._wait()
        self._close()

    def _turn(self) -> bool:
        """Whether other objects are wanted from now on."""
        self._wake.clear()
        if self._ends or not self._is_interrupted:
            return False
        self._close()
        with self._lock:
            self._followed, turns = self._wanted, self._turns
        turns()
        self._version, self._failures = "", 0
        return True

    def _after(self, error: ApiError, why: str) -> str:
        """After a failure: wait, and say why the objects are listed anew if they are."""
        if self._is_interrupted:
            return why
        self._counts.failures[error.cause] += 1
        if error.cause == "expired":
            logger.info("%s: %s, so the %s are listed anew", FIELD, error, self.what)
            if self._failures:
                self._wait()
            self._failures += 1
            self._version = ""
            return "expired"
        self._counts.connected = False
        if error.cause != self._logged_cause:
            self._logged_cause = error.cause
            level = logging.INFO if error.cause in self.expected else logging.WARNING
            words = "%s: no word from the API, %s; trying again: %s"
            logger.log(level, words, FIELD, self._stays(), error)
        self._close()
        self._wait()
        # Events that were missed meanwhile follow, or 410 says that they are too old. What the server itself failed at
        # is not asked again.
        if error.cause not in _KEEPS_VERSION:
            self._version = ""
        return "failed"

    def _list(self, why: str) -> str:
        items: list[Item] = []
        version, beyond = "", False
        for page in self._connected().pages():
            version = page.version
            found = [item for item in map(self._read, page.objects) if item is not None]
            beyond = len(items) + len(found) > self._most or (page.more and len(items) + len(found) == self._most)
            items += found[: self._most - len(items)]
            if beyond:
                break
            if self._is_interrupted:
                return version
        self._counts.lists[why] += 1
        self._listed_s = time.monotonic()
        self._replace(items, beyond)
        self._well()
        return version

    def _watch(self) -> str:
        api = self._connected()
        began_s, events = time.monotonic(), 0
        for event in api.events(self._version, self._well):
            self._version = event.version
            events += 1
            self._failures = 0
            if event.kind != "BOOKMARK":
                self._counts.events += 1
                if (item := self._read(event.object)) is not None:
                    self._put(event.kind, item)
            if self._is_interrupted:
                return "failed"
            if self._has_room_again():
                self._version = ""
                return "room"
        if not events and time.monotonic() - began_s < 1.0 and not self._is_interrupted:
            raise ApiError("server", "the watch ended as soon as it began")
        self._failures = 0
        if time.monotonic() - self._listed_s > _RELIST_AFTER_S * random.uniform(0.8, 1.2):
            self._version = ""
            return "age"
        return "failed"

    def _well(self) -> None:
        self._counts.connected = True
        if self._logged_cause is not None:
            self._logged_cause = None
            logger.info("%s: the API answers again", FIELD)

    def _invalid(self, field: str, about: str, text: str) -> None:
        self._counts.invalid_values[field] += 1
        self._say(logging.WARNING, f"{about}: {text}")

    def _say(self, level: int, text: str) -> None:
        """What whoever may change objects can bring about as often as they like."""
        if time.monotonic() - self._lines_since_s > 1.0:
            self._lines_since_s, self._lines = time.monotonic(), 0
        self._lines += 1
        if self._lines <= _MOST_LINES_PER_S:
            logger.log(level, "%s: %s", FIELD, text)

    def _wait(self) -> None:
        """Longer after each failure in a row, and drawn, so that the balancers of a fleet do not come all at once."""
        longest_s = min(_FIRST_WAIT_S * 2**self._failures, _LONGEST_WAIT_S)
        self._failures = min(self._failures + 1, 16)
        self._wake.wait(random.uniform(longest_s / 2, longest_s))

    def _connected(self) -> ObjectApi:
        if self._api is None:
            api = self._connect(self._followed)
            with self._lock:
                self._api = api
                if self._is_interrupted:
                    api.cut()
        return self._api

    def _close(self) -> None:
        with self._lock:
            api, self._api = self._api, None
        if api is not None:
            api.close()


async def newest_of(make: Callable[[Callable[[Item], None]], Any], stop: asyncio.Event) -> AsyncGenerator[Item, None]:
    """On the event loop what a watch publishes from its thread, until `stop` is set; of what comes faster than it is
    taken, the newest. `make` gets the function that publishes."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Item]()

    def publish(item: Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(queue.put_nowait, item)

    watch = make(publish)
    watch.start()
    stopped = asyncio.create_task(stop.wait())
    try:
        while True:
            item = asyncio.create_task(queue.get())
            await asyncio.wait((item, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                item.cancel()
                return
            newest = item.result()
            while not queue.empty():
                newest = queue.get_nowait()
            yield newest
    finally:
        watch.stop()
        stopped.cancel()
