"""Where tasks run: here, in processes of this machine, or on a Ray cluster. Results do not depend on which."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from multiprocessing.connection import wait
from typing import Any, TypeVar

from balancer.errors import OperatorError

Task = TypeVar("Task")
Found = TypeVar("Found")


class TaskPool(AbstractContextManager["TaskPool"]):
    """Calls a function for each task; a context manager, which ends what it began."""

    progress: Callable[[int, int], None] = staticmethod(lambda done, total: None)
    """Called after each task of a `map`: how many of how many are done."""

    @abstractmethod
    def each(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
        """The place of a task and what is found, as they end."""

    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        """What is found, in the order of the tasks."""
        found: dict[int, Found] = {}
        for place, one in self.each(function, tasks):
            found[place] = one
            self.progress(len(found), len(tasks))
        return [found[place] for place in range(len(tasks))]

    def __exit__(self, *_: object) -> None: ...


class LocalPool(TaskPool):
    def each(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
        return enumerate(map(function, tasks))


class Processes(TaskPool):
    def __init__(self, count: int) -> None:
        # Not fork: the compiled engine's threads would not survive it.
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(count, mp_context=context, initializer=_obey_the_parent)

    def each(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
        waiting = {self._executor.submit(function, task): place for place, task in enumerate(tasks)}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            # Where one failed, the others need not begin.
            for future in waiting:
                future.cancel()

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

    def each(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
        remote = self._ray.remote(lambda task: function(task))  # noqa: PLW0108 - Ray takes no partial
        waiting = {remote.remote(task): place for place, task in enumerate(tasks)}
        try:
            while waiting:
                (ended,), _ = self._ray.wait([*waiting], num_returns=1)
                yield waiting.pop(ended), self._ray.get(ended)
        finally:
            for each in waiting:
                self._ray.cancel(each)

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()


def pool_of(ray: str | None, jobs: int) -> TaskPool:
    """On the Ray cluster at that address, or in so many processes; 1: in this one.

    Raises:
        OperatorError: no cluster answers there.
    """
    if not ray:
        return Processes(jobs) if jobs > 1 else LocalPool()
    try:
        return Ray(ray)
    except ConnectionError as error:
        remedy = "start one (ray start --head), or name local"
        raise OperatorError(f"--ray {ray}: no cluster answers there ({error}); {remedy}") from error
