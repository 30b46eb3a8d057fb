"""Waiting for what nothing announces."""

import asyncio
from collections.abc import Callable
from typing import Any

POLL_S = 0.02
PATIENCE_S = 120.0


async def eventually(
    look: Callable[[], Any],
    what: str = "the condition holds",
    patience_s: float = PATIENCE_S,
    until: Callable[[Any], Any] = bool,
) -> Any:
    """The first value of `look` (which may be async) for which `until` is true; AssertionError naming `what` if none
    comes."""
    deadline_s = asyncio.get_running_loop().time() + patience_s
    while asyncio.get_running_loop().time() < deadline_s:
        value = look()
        if asyncio.iscoroutine(value):
            value = await value
        if until(value):
            return value
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"not so after {patience_s} s: {what}")
