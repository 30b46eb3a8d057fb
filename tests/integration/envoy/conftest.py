from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.envoy_fakes import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path).running() as rig:
        yield rig
