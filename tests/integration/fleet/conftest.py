"""Three real Tritons, agents, a balancer and Envoy, with calls about the fleet answered by the balancer."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support import fronts
from support.fleet_stack import fleet_stack
from support.stack import Stack


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("pick", "native"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("fleet")
    async with fleet_stack(directory, request.param) as stack:
        yield stack
