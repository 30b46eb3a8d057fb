"""Where tasks run: here, in processes of this machine, or on a Ray cluster. Results do not depend on which."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing.connection import wait
from typing import Any, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")


class TaskPool(AbstractContextManager["TaskPool"]):
    """Calls a function for each task; a context manager, which ends what it began."""

    progress: Callable[[int, int], None] = staticmethod(lambda done, total: None)
    """Called after each task of a `map`: how many of how many are done."""

    @abstractmethod
    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]: ...

    def _each(self, found: Iterable[Found], total: int) -> list[Found]:
        """What is found; each is counted in `progress`."""
        all_found = []
        for one in found:
            all_found.append(one)
            self.progress(len(all_found), total)
        return all_found

    def __exit__(self, *_: object) -> None: ...


class LocalPool(TaskPool):
    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        return self._each(map(function, tasks), len(tasks))


class Processes(TaskPool):
    def __init__(self, count: int) -> None:
        # Not fork: the compiled engine's threads would not survive it.
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(count, mp_context=context, initializer=_obey_the_parent)

    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        return self._each(self._executor.map(function, tasks), len(tasks))

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)


def _obey_the_parent() -> None:
    """Ctrl-C is the parent's to answer; where the parent is killed, so that it tells nobody, end as well."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is not the main process

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Ray(TaskPool):
    """On a Ray cluster, a task a CPU; needs `pip install 'balancer[ray]'`."""

    def __init__(self, address: str) -> None:
        """Connect to the cluster at `address`; `local` starts one on this machine.

        Raises:
            ModuleNotFoundError: ray is not installed.
            ConnectionError: there is no cluster at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no reports to Ray's makers, nor a line about them
        import ray  # noqa: PLC0415  # an extra, and slow to import

        self._ray: Any = ray
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)

    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        remote = self._ray.remote(lambda task: function(task))  # noqa: PLW0108 - Ray takes no partial
        begun = [remote.remote(task) for task in tasks]
        return self._each(map(self._ray.get, begun), len(tasks))

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()
