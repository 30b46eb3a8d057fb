"""Stacks of this machine for the tools: the demo's, with emulated GPUs, and Tritons whose model costs nothing."""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from balancer.stack.stack import REPOSITORY, OwnStack, merged, new_triton
from balancer.stack.tritonserver import TritonServer
from balancer.stack.up import EMULATED_GPUS

MODEL = "identity"
POLICY = "expected_latency"
_T = TypeVar("_T")


def new_tritons(directory: Path, count: int = 2) -> list[TritonServer]:
    models = directory / "models"
    models.mkdir(parents=True)
    (models / MODEL).symlink_to(REPOSITORY / "triton" / "feature_models" / MODEL)
    return [new_triton(f"worker-{number}", models, directory) for number in range(count)]


def emulated(
    directory: Path,
    workers: int,
    policy: str,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> OwnStack:
    """A stack whose Tritons emulate GPUs, as `balancer up` starts them.

    Args:
        directory: For files and logs; made where it is not there.
        workers: How many Tritons.
        policy: In force at first.
        settings: Sections of the config beside the policy's.
        environment: Of the Tritons' models.
    """
    models = REPOSITORY / "triton" / "models"
    gpus = zip(range(workers), cycle(EMULATED_GPUS), strict=False)
    native = {"envoy": {"frontend": "native", "shared_folder": str((directory / "shared").resolve())}}
    return OwnStack(
        directory,
        tritons=[new_triton(f"worker-{n}", models, directory, gpu=gpu, environment=environment) for n, gpu in gpus],
        policy={"name": policy},
        settings=merged(native, settings or {}),
    )


async def interruptible(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, or until Ctrl-C or SIGTERM cancels it, so that contexts are left in order."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
