from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.native import NativeRig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[NativeRig]:
    async with NativeRig(tmp_path).running() as rig:
        yield rig
