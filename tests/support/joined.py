"""What holds of requests that the balancer joins, whichever interface they came by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt

from support.stack import Stack

Infer = Callable[[npt.NDArray[np.float32], str], Awaitable[tuple[str, npt.NDArray[np.float32]]]]
"""Rows and an id to the answer's id and its sums of each row."""


async def assert_joined(stack: Stack, infer: Infer) -> None:
    """Of many requests at once, fewer are sent, and each has the answer that it has alone."""

    async def checksum(number: int) -> float:
        rows = np.full((1 + number % 2, 4), number, np.float32)
        name, found = await infer(rows, str(number))
        assert name == str(number)
        assert found.shape == (len(rows), 1)
        assert (found == found[0]).all()
        return float(found[0, 0])

    together = await asyncio.gather(*(checksum(number) for number in range(32)))
    alone = [await checksum(number) for number in range(32)]
    assert together == alone
    joined, sent = [
        await stack.metric("balancer_proxy_batches_total", result=result) for result in ("requests", "sent")
    ]
    assert sent < joined
