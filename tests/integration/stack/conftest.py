"""One stack for the tests of a module that only use it; tests that break things start their own.

It ends with the module: agents and balancer would take a good part of the machine from all tests that follow.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support import fronts
from support.running import running
from support.stack import ALL_MODELS, Stack


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "proxy"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    envoy = fronts.envoy_section(request.param, directory)
    stack = Stack(directory, settings={"log": {"decisions_share": 1.0}, "envoy": envoy}, models=ALL_MODELS)
    async with running(stack):
        yield stack
