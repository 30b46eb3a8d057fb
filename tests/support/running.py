"""Parts that run while a block does."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any


@contextlib.asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[None]:
    """Start the parts in order, and stop all that were started."""
    async with contextlib.AsyncExitStack() as stack:
        for part in parts:
            stack.push_async_callback(part.stop)
            await part.start()
        yield
