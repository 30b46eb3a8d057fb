"""One stack for the tests that only use it; tests that break things start their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.stack import Stack


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    logs = {"log": {"decisions_share": 1.0}, "envoy": {"access_log": str(directory / "envoy-access.log")}}
    stack = Stack(directory, settings=logs)
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()
