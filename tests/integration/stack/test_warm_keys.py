"""Where keys are warm, through a real Envoy to real Tritons whose emulated GPUs remember keys."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support import fronts
from support.inputs import input_of
from support.running import running
from support.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

MODEL = "emulated_bert_large"
WORKERS = 3
ROWS = 8
SESSIONS = 60
REQUESTS = 5
"""Of each session, one after the other."""
AT_ONCE = 3
CACHE = {"EMULATED_GPU_CACHE_KEYS": "4096", "EMULATED_GPU_CACHE_SAVING": "0.9"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("warm")
    stack = Stack(
        directory,
        workers=WORKERS,
        gpus=("T4",),
        models=(MODEL,),
        policy={"name": "expected_latency"},
        settings={
            "requests": {"sticky_keys": False},
            "envoy": {"frontend": request.param, "shared_folder": str(directory / "shared")},
        },
        triton_environment=CACHE,
    )
    async with running(stack):
        yield stack


async def infer(client: triton_grpc.InferenceServerClient, key: str) -> str:
    """Who served."""
    value = input_of(triton_grpc, "INPUT", np.ones((ROWS, 4), np.float32))
    headers = {"x-batch-rows": str(ROWS)} | ({"x-routing-key": key} if key else {})
    result = await client.infer(MODEL, [value], headers=headers)
    return str(result.as_numpy("WORKER").ravel()[0].decode())


async def test_a_session_stays_where_its_key_is_warm_though_nothing_binds_it(stack: Stack) -> None:
    served: dict[int, list[str]] = defaultdict(list)
    waiting = iter(range(SESSIONS))

    async def talk(client: triton_grpc.InferenceServerClient) -> None:
        for session in waiting:
            for _ in range(REQUESTS):
                served[session].append(await infer(client, f"session-{session}"))

    async with triton_grpc.InferenceServerClient(stack.url) as client:
        await asyncio.gather(*(talk(client) for _ in range(AT_ONCE)))
    later = [served[session] for session in range(SESSIONS // 2, SESSIONS)]
    warm = [worker in workers[:i] for workers in later for i, worker in enumerate(workers) if i]
    # By the second half it is known what a hit saves. Requests that went anywhere would find 60% of the keys warm.
    assert np.mean(warm) > 0.75
    # Yet no worker has all of the keys: their first requests go where there is room.
    assert len({workers[0] for workers in later}) == WORKERS
