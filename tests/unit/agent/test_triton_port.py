"""A Triton's port while Triton stops."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from balancer.agent.triton_port import TritonPort

RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def reset_at_once() -> Iterator[tuple[str, threading.Semaphore]]:
    """The address of a port that resets each connection, and one count for each."""
    count = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
                count.release()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", count
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_a_port_that_resets_each_connection_is_asked_again(
    reset_at_once: tuple[str, threading.Semaphore], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, was_reset = reset_at_once
    loop = asyncio.get_running_loop()
    connect, enough = loop.sock_connect, asyncio.Event()
    times = 0

    async def connect_and_be_reset(sock: socket.socket, to: tuple[str, int]) -> None:
        nonlocal times
        await connect(sock, to)
        was_reset.acquire()
        times += 1
        if times == 3:
            enough.set()

    async def never() -> None:
        raise AssertionError("it was never open, so it does not stop")

    monkeypatch.setattr(loop, "sock_connect", connect_and_be_reset)
    port = TritonPort(address)
    watching = asyncio.create_task(port.watch(lambda: True, never))
    enough_questions = asyncio.create_task(enough.wait())
    await asyncio.wait({watching, enough_questions}, return_when=asyncio.FIRST_COMPLETED)
    assert not watching.done(), watching.exception()
    assert not port.stopping
    watching.cancel()
    enough_questions.cancel()
