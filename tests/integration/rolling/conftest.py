"""Two gateways, each an Envoy with a balancer beside it, over the same real Tritons; a stack for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.replicas import Gateways, Replica
from support.stack import Stack


@pytest.fixture
def frontend() -> str:
    """Who decides, unless a test says otherwise."""
    return "native"


@pytest.fixture
def models() -> tuple[str, ...]:
    """Of every worker."""
    return ("emulated_tft",)


@pytest.fixture
async def gateways(tmp_path: Path, frontend: str, models: tuple[str, ...]) -> AsyncIterator[Gateways]:
    second = Replica(tmp_path / "second")
    envoy = {"frontend": frontend, "shared_folder": str(tmp_path / "shared")}
    stack = Stack(
        tmp_path / "stack",
        settings={"envoy": envoy},
        models=models,
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
