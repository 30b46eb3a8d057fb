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

from balancer.load.arrivals import Bursts, bursty, poisson
from balancer.load.result import LoadResult, joined
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.sender import make_sender
from balancer.load.workload import IntArray, LoadWorkload, ModelMix, RowSizes, mixed, streams
from balancer.stack.digits import held_out
from balancer.stack.stack import OwnStack

POLICIES = (
    "round_robin",
    "least_requests",
    "wlpr",
    "power_of_two",
    "peak_ewma",
    "prequal",
    "token_bucket",
    "expected_latency",
)
"""All but `random` (round robin without the turns), `consistent_hash` (this traffic has no routing keys) and `learned`
(it needs a file that `balancer train` wrote)."""

MIX = (
    ModelMix("emulated_tft", 0.25, deadline_s=0.050),
    ModelMix("emulated_bert_distilled", 0.25, deadline_s=0.100),
    ModelMix("emulated_bert_large", 0.50, deadline_s=0.300),
)
ROWS = RowSizes((4, 8), (0.5, 0.5))
BURSTS = Bursts(factor=3.0, mean_burst_s=0.5, mean_calm_s=1.0)

RATE_PER_S = 160.0
"""Mean rate: about 0.55 of what an A100, an A30, a V100 and a T4 can do together without batching, spread by their
speed, and 1.9 times what the T4 can do of a quarter of it; a test computes both from the measured service times. Large
requests at a low rate, so that two cores carry the stack and what is measured is queues at the emulated GPUs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    policies: tuple[str, ...] = POLICIES
    rounds: int = 3
    """Each policy has one window in each round; the windows of a round have the same arrivals."""
    window_s: float = 4.0
    settle_s: float = 1.0
    """Before it: traffic flows, the policy is swapped, and nothing is counted."""
    rate_per_s: float = RATE_PER_S
    seed: int = 1

    @property
    def sending_s(self) -> float:
        """Time spent sending; waiting for the last answers of each window comes on top."""
        return self.rounds * len(self.policies) * (self.settle_s + self.window_s)


def window(plan: Plan, number: int) -> LoadWorkload:
    """The requests of every window of round `number`: Poisson while settling, then bursts.

    The bursts are levelled: their lengths are random, the expected number of requests is not.
    """
    settling, counted, models, rows = streams(plan.seed * 1_000_003 + number, 4)
    before_s = poisson(plan.rate_per_s, plan.settle_s, settling)
    after_s = bursty(plan.rate_per_s, plan.window_s, BURSTS, counted, level=True)
    time_s = np.concatenate([before_s, plan.settle_s + after_s])
    return mixed(time_s, MIX, ROWS, models, rows)


def turns(plan: Plan) -> list[tuple[int, str]]:
    """(round, policy) in order of time: each round in an order of its own, so that no policy always follows another.

    A switchback design: what drifts over minutes (temperature, neighbours, caches) hits all policies alike.
    """
    generator = np.random.default_rng([plan.seed, len(plan.policies)])
    return [
        (number, plan.policies[i]) for number in range(plan.rounds) for i in generator.permutation(len(plan.policies))
    ]


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
    stack: OwnStack, plan: Plan, on_progress: Callable[[int, str, Progress], None]
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
    windows = [window(plan, number) for number in range(plan.rounds)]
    results: dict[str, list[tuple[int, LoadResult]]] = {policy: [] for policy in plan.policies}
    swaps_s: dict[str, list[float]] = {policy: [] for policy in plan.policies}
    settling_errors: collections.Counter[str] = collections.Counter()
    sender = make_sender(stack.url, "grpc", _OPTIONS.connections, _OPTIONS.max_in_flight)
    try:
        for turn, (number, policy) in enumerate(turns(plan)):
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
