"""Whatever dies, leaves or comes too late: behind the proxy no answer reaches another request's client."""

import asyncio
import random
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from support.inputs import input_of
from support.running import running
from support.stack import Stack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.process import free_port_range

pytestmark = pytest.mark.integration

PROXY = {
    "repeatable": True,
    "hedge": True,
    "batch": {"max_rows": 16, "wait_s": 0.002},
    "cache_ttl_s": 0.25,
    "once_s": 0.25,
}
VALUES = 24
CLIENTS = 12


class Clients:
    """Each sends requests that differ, and looks whether the answer is that of its own request. Every other one speaks
    REST."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: dict[int, float] = {}
        """Checksum of each value's rows."""
        self.answered = 0
        self.failed = 0
        self.wrong: list[str] = []

    async def learn(self) -> None:
        """What is right, one request after the other."""
        async with triton_grpc.InferenceServerClient(self._url) as client:
            for value in range(VALUES):
                self._known[value] = (await _by_grpc(client, value, f"learn-{value}", 30.0))[1]
        assert len(set(self._known.values())) > VALUES / 2

    async def run(self, number: int, stop: asyncio.Event) -> None:
        """One client, until it is to stop; some of its requests are given up at once."""
        rng = random.Random(number)
        of, ask = ((triton_grpc, _by_grpc), (triton_http, _by_rest))[number % 2]
        async with of.InferenceServerClient(self._url) as client:
            while not stop.is_set():
                value = rng.randrange(VALUES)
                name = rng.choice(("", f"{number}-{rng.randrange(4)}", "shared"))
                timeout_s = rng.choice((0.002, 0.01, 5.0, 5.0))
                try:
                    answer_name, checksum = await ask(client, value, name, timeout_s)
                except (InferenceServerException, aiohttp.ClientError, TimeoutError):
                    self.failed += 1
                    continue
                self.answered += 1
                if (answer_name, checksum) != (name, self._known[value]):
                    self.wrong.append(f"value {value}, id {name!r}: got {checksum}, id {answer_name!r}")


def _rows(value: int) -> np.ndarray:
    return np.full((1 + value % 3, 4), value * 1.5, np.float32)


def _checksum(result: Any, value: int) -> float:
    checksums = result.as_numpy("CHECKSUM")
    assert len(checksums) == len(_rows(value))
    return float(checksums[0, 0])


async def _by_grpc(
    client: triton_grpc.InferenceServerClient, value: int, name: str, timeout_s: float
) -> tuple[str, float]:
    tensor = input_of(triton_grpc, "INPUT", _rows(value))
    result = await client.infer("emulated_tft", [tensor], request_id=name, client_timeout=timeout_s)
    return str(result.get_response().id), _checksum(result, value)


async def _by_rest(
    client: triton_http.InferenceServerClient, value: int, name: str, timeout_s: float
) -> tuple[str, float]:
    tensor = input_of(triton_http, "INPUT", _rows(value), binary_data=value % 2 == 0)
    output = triton_http.InferRequestedOutput("CHECKSUM", binary_data=value % 5 == 0)
    async with asyncio.timeout(timeout_s):
        result = await client.infer("emulated_tft", [tensor], request_id=name, outputs=[output])
    return str(result.get_response().get("id", "")), _checksum(result, value)


async def test_no_answer_reaches_another_client_while_workers_die_and_clients_leave(tmp_path: Path) -> None:
    settings = {
        "models": {"emulated_tft": {"proxy": PROXY}},
        "envoy": {"frontend": "proxy"},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
    }
    stack = Stack(tmp_path, settings=settings)
    async with running(stack):
        clients, stop = Clients(stack.url), asyncio.Event()
        await clients.learn()

        async def more(answers: int, what: str) -> None:
            before = clients.answered
            await eventually(lambda: clients.answered > before + answers, what)

        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(clients.run(number, stop))
            for victim in (0, 1):
                await more(200, "answers with all workers")
                await stack.tritons[victim].kill()
                await more(200, "answers by those that are left")
                await stack.start_triton(victim)
                await stack.tritons[victim].wait_ready()
            await more(200, "answers with all workers again")
            stop.set()
        assert not clients.wrong
        assert clients.failed
        for result in ("new", "answered", "joined"):
            assert await stack.metric("balancer_proxy_once_total", result=result) > 0
        assert await stack.metric("balancer_proxy_cache_total", result="hit") > 0

        async def idle() -> bool:
            return all(worker["in_flight"] == 0 for worker in (await stack.get("/workers"))["workers"])

        await eventually(idle, "nothing is left in flight")
        assert await stack.metric("balancer_handler_errors_total") == 0
