"""Hostile clients beside the honest ones, for some seconds: odd headers, uploads stopped half-way, calls given up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import grpc
from fuzz import inputs, wire

from balancer.files.schema import split_address
from balancer.proxy.messages import INFER
from dev.stack import MODEL

_UPLOADS = 10
_UPLOADED_BYTES = 1_000_000
_CLIENTS = 4
_PAUSE_S = 0.02
_GIVES_UP_S = 0.003


async def annoy(endpoint: str, rng: Random, seconds: float) -> Counter[str]:
    """Do all of it; returns how the requests were answered."""
    answers: Counter[str] = Counter()
    host, port = split_address(endpoint)
    async with contextlib.AsyncExitStack() as open_:
        for _ in range(_UPLOADS):
            await open_.enter_async_context(_half_upload(host, port))
        channel = await open_.enter_async_context(grpc.aio.insecure_channel(endpoint))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                odd = (_odd(endpoint, rng, answers) for _ in range(_CLIENTS))
                await asyncio.gather(*odd, _fickle(channel, rng, answers))
    return answers


async def _odd(endpoint: str, rng: Random, answers: Counter[str]) -> None:
    while True:
        request = rng.choice((wire.http1_request, wire.http2_call))(rng)
        answers[await wire.exchange(endpoint, request)] += 1
        await asyncio.sleep(_PAUSE_S)


async def _fickle(channel: grpc.aio.Channel, rng: Random, answers: Counter[str]) -> None:
    """Calls whose client leaves at any moment."""
    infer: Any = channel.unary_unary(INFER)
    while True:
        call = infer(inputs.inference(rng)[:3000])
        await asyncio.sleep(rng.random() * _GIVES_UP_S)
        call.cancel()
        answers["given up"] += 1
        await asyncio.sleep(_PAUSE_S)


@contextlib.asynccontextmanager
async def _half_upload(host: str, port: int) -> AsyncIterator[None]:
    """An upload that stops half-way and is held open."""
    writer = None
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(host, port)
        head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {2 * _UPLOADED_BYTES}\r\n\r\n"
        writer.write(head.encode() + bytes(_UPLOADED_BYTES))
    try:
        yield
    finally:
        if writer is not None:
            writer.transport.abort()
