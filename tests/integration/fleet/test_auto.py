"""A config that says nothing of front end and fleet: Envoy decides by itself, and the listener is one Triton."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from support.stack import Stack

from balancer.config import frontend

pytestmark = pytest.mark.integration


async def test_envoy_decides_and_the_fleet_answers_as_one_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend, "_missing", lambda: "")
    settings = {"envoy": {"frontend": "auto"}, "listen": {"fleet": "auto"}}
    stack = Stack(tmp_path, workers=2, models=("identity",), settings=settings)
    try:
        await stack.start()
        assert stack.config.frontend == "native"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{stack.url}/v2") as response:
                assert (await response.json())["name"] == "triton"
            async with session.get(f"http://{stack.url}/v2/models/identity/ready") as response:
                assert response.status == 200
        assert (await stack.get("/recent"))["policy"] == "round_robin"
    finally:
        await stack.stop()
