"""One stack for attacks that it is to survive; the state that they leave behind is part of what is tested.

It ends with the module: agents and balancer would take a good part of the machine from all tests that follow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.guarded_listener import overlay
from support.running import running
from support.stack import Stack

SETTINGS = {
    "log": {"decisions_share": 1.0},
    "models": {"emulated_tft": {"versions": [1]}, "digits": {"devices": ["H100"]}},
    "limits": {"max_pending_per_worker": 16},
}
"""`digits` may run nowhere here, so whoever is answered has passed by the table."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["pick", "native", "proxy"])
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("attacked")
    # An honest pick may take its time on a busy machine; a loop that is blocked for longer is what an attacker wants.
    listener = "asking" if request.param == "native" else "inference"
    patient = overlay(directory, {"envoy.filters.http.ext_proc": {"message_timeout": "10s"}}, listener)
    envoy = {"overlay": str(patient), "frontend": request.param, "shared_folder": str(directory / "shared")}
    # By expected latency, as by default: the one policy that all estimators move.
    policy = {"name": "expected_latency"}
    stack = Stack(
        directory,
        workers=2,
        gpus=("A100", "A100"),
        models=("emulated_tft", "emulated_bert_large", "digits"),
        settings={**SETTINGS, "envoy": envoy},
        policy=policy,
    )
    async with running(stack):
        await stack.count_unpicked()
        yield stack
