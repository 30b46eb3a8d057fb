"""Each of these tests breaks its own stack."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.running import running
from support.stack import Stack

from balancer.extproc.endpoints import LastKnown


@pytest.fixture
def frontend() -> str:
    """Who decides. Tests that hold for both are parametrized."""
    return "pick"


@pytest.fixture
def envoy(frontend: str, tmp_path: Path) -> dict[str, str]:
    """Section of the config."""
    section = {"frontend": frontend, "shared_folder": str(tmp_path / "shared")}
    if frontend == "native":
        # As `balancer envoy` does, before the balancer has run.
        LastKnown(tmp_path / "endpoints").begin()
        section["endpoints_folder"] = str(tmp_path / "endpoints")
    return section


@pytest.fixture
async def stack(tmp_path: Path, envoy: dict[str, str]) -> AsyncIterator[Stack]:
    # Reports are what a worker's end is known by, so nothing here waits for a time-out of its own.
    # Without a listener for HTTP, what is REST goes past a balancer that forwards.
    listen = {"fleet": f"unix:{tmp_path}/fleet"} if envoy["frontend"] == "proxy" else {}
    settings = {"log": {"decisions_share": 1.0}, "envoy": envoy, "listen": listen}
    stack = Stack(tmp_path, settings=settings, patient=False)
    async with running(stack):
        yield stack
