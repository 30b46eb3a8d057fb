"""Workers from a name in DNS."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import pytest
from support.waiting import eventually

from balancer.discovery.dns import MAX_ADDRESSES, DnsSource, addresses_of
from balancer.discovery.workers import WorkerSpec


class Followed:
    """A source over what the test says that the name has; an exception is raised."""

    def __init__(self) -> None:
        self.has: list[str] | Exception = []
        self.queries = 0
        self.workers: tuple[WorkerSpec, ...] | None = None
        self.stop = asyncio.Event()

    def resolve(self, name: str) -> list[str]:
        assert name == "triton.svc"
        self.queries += 1
        if isinstance(self.has, Exception):
            raise self.has
        return self.has

    async def follow(self) -> None:
        source = DnsSource("triton.svc", (5001, 5000), self.resolve, every_s=0.001)
        async with contextlib.aclosing(source.updates(self.stop)) as updates:
            async for workers in updates:
                self.workers = workers

    async def until(self, *names: str) -> None:
        def listed() -> bool:
            return self.workers is not None and [worker.name for worker in self.workers] == list(names)

        await eventually(listed, f"{names} are listed")


@contextlib.asynccontextmanager
async def followed() -> AsyncIterator[Followed]:
    following = Followed()
    task = asyncio.create_task(following.follow())
    try:
        yield following
    finally:
        following.stop.set()
        await task


async def test_each_address_is_a_worker() -> None:
    async with followed() as name:
        await name.until()
        name.has = ["10.0.0.2", "10.0.0.1", "10.0.0.2", "127.0.0.1", "169.254.169.254"]
        await name.until("10.0.0.1", "10.0.0.2")
        assert name.workers is not None
        assert name.workers[0] == WorkerSpec(name="10.0.0.1", address="10.0.0.1", grpc_port=5001, http_port=5000)
        name.has = ["10.0.0.2"]
        await name.until("10.0.0.2")


async def test_the_last_list_stays_while_nobody_answers_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with followed() as name:
        name.has = ["10.0.0.1"]
        await name.until("10.0.0.1")
        name.has = socket.gaierror(-2, "Name or service not known")
        before = name.queries
        await eventually(lambda: name.queries > before + 3, "it is asked again and again")
        await name.until("10.0.0.1")
        name.has = ["10.0.0.3"]
        await name.until("10.0.0.3")
    assert caplog.messages == [
        "discovery.dns: no address of triton.svc, the workers known last stay: [Errno -2] Name or service not known",
        "discovery.dns: triton.svc has addresses again",
    ]


async def test_addresses_are_bounded() -> None:
    async with followed() as name:
        name.has = [f"10.0.{number // 256}.{number % 256}" for number in range(MAX_ADDRESSES + 5)]
        await eventually(lambda: name.workers and len(name.workers) == MAX_ADDRESSES, "as many as are taken")


async def test_a_resolver_that_hangs_holds_up_no_shutdown() -> None:
    hangs, queried = threading.Event(), threading.Event()

    def resolve(name: str) -> list[str]:
        queried.set()
        hangs.wait()
        return []

    async def follow() -> None:
        async for _ in DnsSource("triton.svc", resolve=resolve).updates(asyncio.Event()):
            pass

    task = asyncio.create_task(follow())
    try:
        await eventually(queried.is_set, "it is asked")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        hangs.set()


def test_a_real_name() -> None:
    assert "127.0.0.1" in addresses_of("localhost")
