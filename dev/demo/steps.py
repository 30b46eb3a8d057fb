"""What the demo does: digits through the whole stack, then policies taking turns under the same traffic."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from balancer.load.result import LoadResult, joined
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.sender import make_sender
from balancer.load.workload import IntArray
from balancer.stack.digits import held_out
from balancer.stack.stack import OwnStack
from dev.demo import traffic

REQUIRED_ACCURACY = 0.95
_IMAGES_AT_A_TIME = 16
_BLOCK_S = 0.5
_OPTIONS = DriveOptions(timeout_s=60.0)


@dataclasses.dataclass(frozen=True, slots=True)
class DigitsOutcome:
    images: int
    right: int
    errors: dict[str, int]

    @property
    def accuracy(self) -> float:
        """Share of the images that came back with their digit; a failed request is not right."""
        return self.right / self.images

    @property
    def why_not(self) -> str:
        """Why that is not good enough; empty where it is."""
        if self.errors:
            return f"requests for digits failed: {self.errors}"
        if self.accuracy > REQUIRED_ACCURACY:
            return ""
        return (
            f"{self.accuracy:.1%} of the digits were right, and more than {REQUIRED_ACCURACY:.0%} must be: "
            "is triton/models/digits the trained model?"
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PolicyOutcome:
    policy: str
    result: LoadResult
    block: IntArray
    """Half-second of which window each record is of; shape `(n,)`: see `statistics.quantile_interval`."""
    swaps_s: tuple[float, ...]
    """From writing the file until the policy was in force, for each window."""
    settling_errors: int = 0
    """Requests that failed before the counted parts, while the policy was swapped."""


async def digits_accuracy(url: str) -> DigitsOutcome:
    """Send every held-out image as a request of its own to the model `digits`, a few at a time."""
    digits = held_out()
    client = triton.InferenceServerClient(url)
    limit = asyncio.Semaphore(_IMAGES_AT_A_TIME)
    errors: collections.Counter[str] = collections.Counter()

    async def classify(i: int) -> int:
        image = triton.InferInput("IMAGE", [1, digits.images.shape[1]], "FP32")
        image.set_data_from_numpy(digits.images[i : i + 1])
        async with limit:
            try:
                answer = await client.infer("digits", [image], request_id=f"digit-{i}", client_timeout=30.0)
            except InferenceServerException as error:
                errors[str(error.status()).removeprefix("StatusCode.")] += 1
                return -1
        return int(answer.as_numpy("LABEL").flat[0])

    try:
        labels = await asyncio.gather(*(classify(i) for i in range(len(digits.labels))))
    finally:
        await client.close()
    return DigitsOutcome(len(digits.labels), int((np.array(labels) == digits.labels).sum()), dict(errors))


async def compare_policies(
    stack: OwnStack, plan: traffic.Plan, on_progress: Callable[[int, str, Progress], None]
) -> list[PolicyOutcome]:
    """Drive one window after the other, each under its policy; outcomes in the order of `plan.policies`.

    A window begins with traffic under the policy of the one before; then the file is written, and what counts begins
    after `plan.settle_s`. It ends with its last answer, so that no policy inherits another's queues.

    Args:
        stack: Where to send, and whose config file to write.
        plan: What to send, and in which turns.
        on_progress: Told the window's number (from 0), its policy, and how it goes.

    Raises:
        OperatorError: where a swap does not take, or the stack ends.
    """
    windows = [traffic.window(plan, number) for number in range(plan.rounds)]
    results: dict[str, list[tuple[int, LoadResult]]] = {policy: [] for policy in plan.policies}
    swaps_s: dict[str, list[float]] = {policy: [] for policy in plan.policies}
    settling_errors: collections.Counter[str] = collections.Counter()
    sender = make_sender(stack.url, "grpc", _OPTIONS.connections, _OPTIONS.max_in_flight)
    try:
        for turn, (number, policy) in enumerate(traffic.turns(plan)):
            stack.check()
            swap = asyncio.create_task(_swap_soon(stack, policy, plan.settle_s / 4))
            try:
                result = await drive(
                    stack.url,
                    windows[number],
                    _OPTIONS,
                    sender=sender,
                    on_progress=functools.partial(on_progress, turn, policy),
                )
                swaps_s[policy].append(await swap)
            finally:
                swap.cancel()
            counted = result.between(plan.settle_s, plan.settle_s + plan.window_s)
            settling_errors[policy] += int((~result.between(0, plan.settle_s).ok).sum())
            results[policy].append((number, counted))
    finally:
        await sender.close()
    return [
        PolicyOutcome(
            policy=policy,
            result=joined([result for _, result in results[policy]]),
            block=np.concatenate([_blocks(number, result) for number, result in results[policy]]),
            swaps_s=tuple(swaps_s[policy]),
            settling_errors=settling_errors[policy],
        )
        for policy in plan.policies
    ]


async def _swap_soon(stack: OwnStack, policy: str, after_s: float) -> float:
    await asyncio.sleep(after_s)
    return await stack.swap(policy)


def _blocks(number: int, result: LoadResult) -> IntArray:
    return number * 1_000_000 + (result.scheduled_s / _BLOCK_S).astype(np.int64)
