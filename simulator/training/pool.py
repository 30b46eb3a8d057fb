"""Where tasks run: here, in processes of this machine, or on a Ray cluster. Results do not depend on which."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol, Self, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")


class Pool(Protocol):
    """Calls a function for each task."""

    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        """What the function returns for each, in their order."""


class Here:
    """In this process, one after the other."""

    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        """See `Pool`."""
        return [function(task) for task in tasks]


class Processes:
    """In `count` processes of this machine."""

    def __init__(self, count: int) -> None:
        # Not fork: the compiled engine's threads would not survive it.
        self._executor = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))

    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        """See `Pool`."""
        return list(self._executor.map(function, tasks))

    def __enter__(self) -> Self:
        """As a context manager it stops its processes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes."""
        self._executor.shutdown(cancel_futures=True)


class Ray:
    """On a Ray cluster, a task a CPU; needs `pip install 'balancer[ray]'`."""

    def __init__(self, address: str) -> None:
        """Connect to the cluster at `address`; `local` starts one on this machine."""
        import ray  # noqa: PLC0415  # an extra, and slow to import

        self._ray: Any = ray
        ray.init(address=None if address == "local" else address, log_to_driver=False)

    def map(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        """See `Pool`."""
        remote = self._ray.remote(function)
        found: list[Found] = self._ray.get([remote.remote(task) for task in tasks])
        return found

    def __enter__(self) -> Self:
        """As a context manager it disconnects."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._ray.shutdown()
