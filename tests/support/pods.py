"""Pods in the API's JSON, as a kubelet would leave them."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, TypeVar

from balancer.discovery.cluster.watch import THREAD
from support.waiting import PATIENCE_S, eventually

Item = TypeVar("Item")


@contextlib.asynccontextmanager
async def until_stopped(follow: Coroutine[Any, Any, None], stop: asyncio.Event) -> AsyncIterator[None]:
    """A watch of pods that is followed, and then ends as it promises: a shutdown does not wait for the API."""
    task = asyncio.create_task(follow)
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)
        await eventually(_no_watch, "the watch's thread ends")


class Followed(Generic[Item]):
    """What a source yields, while the test runs; `shown`: what the tests compare of each item."""

    def __init__(self, source: Any, shown: Callable[[Any], Item]) -> None:
        self.source, self._shown = source, shown
        self.listed: list[Item] = []
        self.stop = asyncio.Event()

    async def follow(self) -> None:
        """Note every item until `stop` is set."""
        async with contextlib.aclosing(self.source.updates(self.stop)) as updates:
            async for item in updates:
                self.listed.append(self._shown(item))

    async def until(self, newest: Item) -> None:
        """Return once this is the newest."""
        await eventually(lambda: self.listed[-1:] == [newest], f"{newest} is listed")


def _no_watch() -> bool:
    return all(not thread.name.startswith(THREAD) for thread in threading.enumerate())


def pod(name: str, last: int = 1, **more: Any) -> dict[str, Any]:
    """A pod that runs and is ready at 10.0.0.`last`. `more`: `annotations`, `labels`, `ready`, `phase`, `address`,
    `deleted`, `uid`, `created`, `ports` (name to number), `version`.
    """
    metadata: dict[str, Any] = {
        "name": name,
        "uid": more.get("uid", f"uid of {name}"),
        "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
        "resourceVersion": more.get("version", "1"),
        "annotations": more.get("annotations", {}),
        "labels": {"app": "triton", **more.get("labels", {})},
    }
    if more.get("deleted"):
        metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    ports = [{"name": each, "containerPort": number} for each, number in more.get("ports", {}).items()]
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "triton", "ports": ports}]},
        "status": {
            "phase": more.get("phase", "Running"),
            "podIP": more.get("address", f"10.0.0.{last}"),
            "conditions": [{"type": "Ready", "status": "True" if more.get("ready", True) else "False"}],
        },
    }
