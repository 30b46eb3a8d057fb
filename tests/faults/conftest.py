"""Each of these tests breaks its own stack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.stack import Stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    # Reports are what a worker's end is known by, so nothing here waits for a time-out of its own.
    stack = Stack(tmp_path, settings={"log": {"decisions_share": 1.0}})
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()
