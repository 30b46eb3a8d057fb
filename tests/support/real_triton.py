"""A real Triton that runs while a block does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from balancer.stack.tritonserver import TritonServer


@asynccontextmanager
async def running(server: TritonServer) -> AsyncIterator[TritonServer]:
    """Ready, until the block ends."""
    try:
        await server.start()
        await server.wait_ready()
        yield server
    finally:
        await server.kill()
