from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.native import NativeRig

from balancer.native.state import HUNG_AFTER_S, STALE_AFTER_S


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[NativeRig]:
    async with NativeRig(tmp_path).running() as rig:
        yield rig


@pytest.fixture
async def mortal(tmp_path: Path) -> AsyncIterator[NativeRig]:
    """Whose balancer is soon taken for dead: also where this process is kept from its signs of life."""
    async with NativeRig(tmp_path, stale_after_s=STALE_AFTER_S, hung_after_s=HUNG_AFTER_S).running() as rig:
        yield rig
