"""A worker that answers INTERNAL to everything, fast, by a policy that sees only who has the fewest requests."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support import fronts
from support import stack as stacks
from support.inputs import input_of
from support.running import running
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually
from tritonclient.utils import InferenceServerException

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MODEL = "moody"
FAILED = "StatusCode.INTERNAL"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "proxy"))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("failing")
    stack = Stack(
        directory,
        models=(MODEL,),
        policy={"name": "least_requests"},
        settings={"envoy": {"frontend": request.param, "shared_folder": str(directory / "shared")}},
        triton_environment={"MOODY_FOLDER": str(directory)},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(stacks._MODELS, MODEL, Path(__file__).parent / "models" / MODEL)
        async with running(stack):
            yield stack


async def infer(client: triton_grpc.InferenceServerClient, value: float) -> str:
    """The worker, or the status of the error."""
    tensor = input_of(triton_grpc, "INPUT", np.array([value], np.float32))
    try:
        result = await client.infer(MODEL, [tensor], client_timeout=PATIENCE_S)
    except InferenceServerException as error:
        return str(error.status())
    return str(result.as_numpy("WORKER").ravel()[0].decode())


async def load(stack: Stack, *values: float) -> Counter[str]:
    """What became of 60 requests, 6 at a time; a request each of `values` in turn."""
    async with triton_grpc.InferenceServerClient(stack.url) as client:

        async def ask(first: int) -> list[str]:
            return [await infer(client, values[i % len(values)]) for i in range(first, 60, 6)]

        return Counter(end for ends in await asyncio.gather(*map(ask, range(6))) for end in ends)


def left_out(stack: Stack) -> list[str]:
    lines = (line for line in stack.log.so_far() if "fails at every request to a model" in str(line))
    return [line["worker"] for line in lines]


async def test_bad_inputs_leave_nobody_out(stack: Stack) -> None:
    for _ in range(3):
        ends = await load(stack, -1.0, -1.0, 1.0)
        assert ends.pop(FAILED) == 40
        assert sum(ends.values()) == 20
    assert len(await load(stack, 1.0)) == 3
    assert left_out(stack) == []


async def test_a_worker_that_fails_at_everything_is_left_out_until_it_answers(stack: Stack) -> None:
    (stack.directory / "worker-1").touch()
    await eventually(
        lambda: load(stack, 1.0),
        "requests go to those that answer",
        until=lambda found: set(found) == {"worker-0", "worker-2"},
    )
    assert set(left_out(stack)) == {"worker-1"}
    (stack.directory / "worker-1").unlink()
    await eventually(
        lambda: load(stack, 1.0),
        "it is tried again",
        until=lambda found: set(found) == {"worker-0", "worker-1", "worker-2"},
    )
