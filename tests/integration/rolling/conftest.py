"""Two gateways, each an Envoy with a balancer beside it, over the same real Tritons; those of a module are its own."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support import fronts
from support.replicas import Gateways, Replica
from support.stack import Stack


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick"))
async def gateways(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Gateways]:
    folder = tmp_path_factory.mktemp("rolling")
    second = Replica(folder / "second")
    stack = Stack(
        folder / "stack",
        settings={"envoy": {"frontend": request.param, "shared_folder": str(folder / "shared")}},
        models=("emulated_tft", "sequence_sum"),
        agent_arguments=second.reports,
        # How long a drained Envoy asks its clients to leave before it closes its listeners.
        envoy_arguments=("--drain-time-s", "2"),
    )
    try:
        await stack.start()
        await second.start_over(stack)
        yield Gateways(stack, second)
    finally:
        await second.stop()
        await stack.stop()
