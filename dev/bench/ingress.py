"""What a topic before the listener costs: requests by Triton's own client, and by NATS and an ingress, in turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

import nats
import numpy as np
import tritonclient.http.aio as triton
from nats.aio.client import Client
from nats.aio.msg import Msg

from balancer.stack.ingress_parts import ANSWERS, REQUESTS, ingress_parts
from balancer.stack.nats_server import NatsServer
from balancer.stack.process import free_ports
from balancer.stack.stack import OwnStack
from dev.bench.results import Options, Table
from dev.stack import POLICY, emulated

_WORKERS, _ROUNDS = 3, 5
_MODEL = "digits"
_BODY = json.dumps({"inputs": [{"name": "IMAGE", "shape": [1, 64], "datatype": "FP32", "data": [0.0] * 64}]}).encode()
_CONCURRENCY = 64
"""Of Triton's client where it is to send as many as it can."""
_S, _RATE_PER_S = 10.0, 20.0
_AHEAD = 2000
"""Messages that wait in the topic while the ingress serves as many as it can."""


def measure(options: Options) -> list[Table]:
    """Requests a second, and milliseconds at a low rate."""
    return asyncio.run(_measure(options))


async def _measure(options: Options) -> list[Table]:
    with tempfile.TemporaryDirectory(prefix="bench-ingress-") as folder:
        stack = emulated(Path(folder), _WORKERS, POLICY)
        async with stack:
            stack.before_listener = ingress_parts(stack, free_ports(1)[0])
            for part in stack.before_listener.values():
                await part.start()
            return await _compared(stack, options)


async def _compared(stack: OwnStack, options: Options) -> list[Table]:
    client = triton.InferenceServerClient(stack.url, conn_limit=_CONCURRENCY)
    topic = await _Topic.of(stack)
    await topic.begin()
    rates, delays = [], []
    for _ in range(options.often(_ROUNDS)):
        rates.append((await _most(client, options.seconds(_S)), await topic.most(options.seconds(_S))))
        delays.append((await _delay_ms(client, options.seconds(_S)), await topic.delay_ms(options.seconds(_S))))
    await client.close()
    await topic.close()
    ratios = sorted(by_topic / plain for plain, by_topic in rates)
    added = sorted(by_topic - plain for plain, by_topic in delays)
    rows = [
        ["Triton's client", *(f"{statistics.median(of[0] for of in each):,.1f}" for each in (rates, delays))],
        ["a topic", *(f"{statistics.median(of[1] for of in each):,.1f}" for each in (rates, delays))],
    ]
    share = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    more_ms = f"{statistics.median(added):.1f} ms ({added[0]:.1f} to {added[-1]:.1f})"
    note = f"Medians of {len(rates)} rounds. Of the client's throughput: {share}; added to p50: {more_ms}."
    title = f"Ingress, NATS, {_WORKERS} real Tritons, {_MODEL}: as many as go, and {_RATE_PER_S:g} a second"
    return [Table(title, ["by", "requests a second", "p50, ms"], rows, note)]


async def _infer(client: triton.InferenceServerClient) -> None:
    image = triton.InferInput("IMAGE", [1, 64], "FP32")
    image.set_data_from_numpy(np.zeros((1, 64), np.float32), binary_data=False)
    await client.infer(_MODEL, [image])


async def _most(client: triton.InferenceServerClient, seconds: float) -> float:
    until_s, count = time.perf_counter() + seconds, itertools.count()

    async def send() -> None:
        while time.perf_counter() < until_s:
            await _infer(client)
            next(count)

    await asyncio.gather(*(send() for _ in range(_CONCURRENCY)))
    return next(count) / seconds


async def _delay_ms(client: triton.InferenceServerClient, seconds: float) -> float:
    took_s = []
    for _ in range(int(seconds * _RATE_PER_S)):
        began_s = time.perf_counter()
        await _infer(client)
        took_s.append(time.perf_counter() - began_s)
        await asyncio.sleep(1 / _RATE_PER_S)
    return 1e3 * statistics.median(took_s)


class _Topic:
    def __init__(self, client: Client) -> None:
        self._client, self._numbers = client, itertools.count()
        self._answered_s: dict[str, float] = {}
        self._came = asyncio.Event()

    @classmethod
    async def of(cls, stack: OwnStack) -> _Topic:
        server, *_ = stack.before_listener.values()
        assert isinstance(server, NatsServer)

        async def not_there_yet(_: Exception) -> None:
            """It is asked again."""

        client = await nats.connect(server.url, error_cb=not_there_yet, max_reconnect_attempts=-1)
        topic = cls(client)
        await client.subscribe(f"{ANSWERS}.>", cb=topic._take)
        return topic

    async def close(self) -> None:
        await self._client.close()

    async def _take(self, message: Msg) -> None:
        self._answered_s[(message.headers or {})["x-request-id"]] = time.perf_counter()
        self._came.set()

    async def _publish(self) -> tuple[str, float]:
        id_, now_s = f"id-{next(self._numbers)}", time.perf_counter()
        headers = {"Nats-Msg-Id": id_, "x-model": _MODEL}
        await self._client.publish(f"{REQUESTS}.new", _BODY, headers=headers)
        return id_, now_s

    async def begin(self) -> None:
        """Publish until one is answered: there is no topic before the ingress is ready."""
        while not self._answered_s:
            await self._publish()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next(), 1.0)

    async def _next(self) -> None:
        self._came.clear()
        await self._came.wait()

    async def most(self, seconds: float) -> float:
        """Answers a second while messages wait."""
        before, began_s = len(self._answered_s), time.perf_counter()
        sent = 0
        while time.perf_counter() < began_s + seconds:
            while sent - (len(self._answered_s) - before) < _AHEAD:
                await self._publish()
                sent += 1
            await self._next()
        rate = (len(self._answered_s) - before) / (time.perf_counter() - began_s)
        while len(self._answered_s) - before < sent:
            await self._next()
        return rate

    async def delay_ms(self, seconds: float) -> float:
        sent = []
        for _ in range(int(seconds * _RATE_PER_S)):
            sent.append(await self._publish())
            await asyncio.sleep(1 / _RATE_PER_S)
        while any(id_ not in self._answered_s for id_, _ in sent):
            await self._next()
        return 1e3 * statistics.median(self._answered_s[id_] - at_s for id_, at_s in sent)
