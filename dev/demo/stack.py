"""The stack that demo and live experiments send to: Tritons with emulated GPUs, as `balancer up` starts them."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import time
from collections.abc import Coroutine, Mapping
from itertools import cycle
from types import TracebackType
from typing import Any, Self, TypeVar

from balancer.errors import OperatorError
from balancer.stack.stack import REPOSITORY, OwnStack, merged, new_triton
from balancer.stack.up import EMULATED_GPUS

_T = TypeVar("_T")

_POLL_S = 0.02
_SWAP_TIMEOUT_S = 5.0


class DemoStack(OwnStack):
    """The whole stack, as a context: started and ready within, stopped after, whatever happens."""

    def __init__(
        self,
        directory: pathlib.Path,
        workers: int,
        policy: str,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`directory` gets files and logs.

        Args:
            directory: Made where it is not there.
            workers: How many Tritons.
            policy: In force at first.
            settings: Sections of the config beside the policy's.
            environment: Of the Tritons' models.
        """
        models = REPOSITORY / "triton" / "models"
        gpus = zip(range(workers), cycle(EMULATED_GPUS), strict=False)
        native = {"envoy": {"frontend": "native", "shared_folder": str((directory / "shared").resolve())}}
        super().__init__(
            directory,
            tritons=[new_triton(f"worker-{n}", models, directory, gpu=gpu, environment=environment) for n, gpu in gpus],
            policy={"name": policy},
            settings=merged(native, settings or {}),
        )

    async def __aenter__(self) -> Self:
        """Start, and return when all is ready; OperatorError, with the end of a log, where it does not get so."""
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    async def swap(self, policy: str) -> float:
        """Name the policy in the config file, and return the seconds until it was in force.

        Raises:
            OperatorError: where that takes too long, with what the balancer says of the file.
        """
        began_s = time.monotonic()
        self.write_config({"name": policy})
        while time.monotonic() < began_s + _SWAP_TIMEOUT_S:
            if (await self.page("/workers"))["policy"] == policy:
                return time.monotonic() - began_s
            await asyncio.sleep(_POLL_S)
        config = await self.page("/config")
        raise OperatorError(
            f"policy {policy} was not in force {_SWAP_TIMEOUT_S:.0f} s after {self.config_path} was written; "
            f"/config says {json.dumps(config.get('last_error'))}; {self.balancer.log_tail()}"
        )

    async def page(self, path: str) -> dict[str, Any]:
        """A JSON page of the admin interface; OperatorError where it does not answer."""
        found: dict[str, Any] | None = await self.get(path)
        if found is None:
            raise OperatorError(f"the balancer's admin interface does not answer; {self.balancer.log_tail()}")
        return found

    async def decisions_now(self) -> dict[str, float]:
        """How many requests each policy has decided so far, by name: a guard's baseline counts for itself."""
        return dict((await self.page("/recent"))["decisions"])


async def interruptible(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, or until Ctrl-C or SIGTERM cancels it, so that contexts are left in order."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
