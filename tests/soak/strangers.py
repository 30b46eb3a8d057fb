"""Hostile clients beside the honest ones, for some seconds: odd headers, uploads cut short, calls given up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import Any

import grpc
from fuzz import inputs, wire

from balancer.proxy.messages import INFER

_CLIENTS = 4
_PAUSE_S = 0.02
_GIVES_UP_S = 0.003


async def annoy(endpoint: str, rng: Random, seconds: float) -> Counter[str]:
    """Returns how the requests were answered."""
    answers: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(endpoint) as channel:
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
