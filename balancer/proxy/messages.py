"""What passes through the proxy: a request as it came, and its answer as it goes back; tensors as KServe has them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from balancer.channels import restricted
from balancer.extproc.kserve import SERVICE, Call
from balancer.extproc.names import NOT_EXECUTED_TEXTS, NOT_TAKEN
from balancer.extproc.responses import (
    CODES,
    HTTP_STATUSES,
    INTERNAL_CODES,
    INVALID_CODES,
    OF_ABORTED,
    PUSHBACK,
    RETRY_AFTER,
    By,
    Verdict,
    verdict,
)
from balancer.scheduler.canary.split import VersionDraw
from balancer.scheduler.errors import RoutingError

SERVED_MODEL = "x-served-model"
"""Header and trailer that name the model which answered."""
INFER = f"{SERVICE}ModelInfer"
STREAM = f"{SERVICE}ModelStreamInfer"

OK, CANCELLED, DEADLINE_EXCEEDED, ALREADY_EXISTS, RESOURCE_EXHAUSTED, UNAVAILABLE = 0, 1, 4, 6, 8, 14
INVALID_ARGUMENT, INTERNAL = INVALID_CODES[1], INTERNAL_CODES[1]
CODE_OF = {status.value[0]: status for status in grpc.StatusCode}

_NO_CONNECTION = "failed to connect to all addresses"
UNREACHED = "no connection to a worker; retry later"
_NOT_TAKEN = "the worker stopped before it began with the request; retry later"

Metadata = tuple[tuple[str, str | bytes], ...]
Context = grpc.aio.ServicerContext[bytes, bytes]

# What belongs to one connection, or is written anew for the next.
_OF_ONE_HOP = frozenset(("te", "content-type", "user-agent", "host", "accept-encoding", "content-length"))
_PREFIXES = (":", "grpc-", "x-envoy-", "x-gateway-destination-endpoint")


@dataclass(frozen=True, slots=True)
class Arrived:
    """An inference, understood and not decoded."""

    call: Call
    data: bytes
    metadata: Metadata
    deadline_s: float = math.inf
    """By the proxy's clock: when its client stops waiting."""
    repeatable: bool = False
    hedged: bool = False
    id_spans: tuple[tuple[int, int], ...] = ()
    in_memory: bool = False
    """Whether a tensor of it may be in shared memory: then it shares no execution, and has no second one."""
    cascaded: bool = False
    """Whether its model was chosen for it, so that its client is to be told."""
    draw: VersionDraw | None = None
    """By which it got its version; None: it named one, or there is one for all."""


@dataclass(frozen=True, slots=True)
class ProxyAnswer:
    code: int
    details: str = ""
    data: bytes = b""
    worker: str = ""
    """That gave it; empty: none did."""
    initial: Metadata = ()
    trailing: Metadata = ()
    unexecuted: bool = False
    """Whether certainly no worker began with the request."""
    by: By = ""
    latency_s: float = math.nan
    """Of the worker's answer; NaN: none is a measure of it."""
    policy: str = ""
    streamed_bytes: int = 0
    messages: int = 0
    """How many messages the worker sent in a stream."""
    answering_s: float = math.nan
    """Seconds from the first to the last message of a language model's stream."""

    @property
    def received_bytes(self) -> int:
        return self.streamed_bytes or len(self.data)


def passed_on(metadata: Iterable[tuple[str, str | bytes]]) -> Metadata:
    """Headers or trailers less those that belong to one connection."""
    return tuple(
        (name, value) for name, value in metadata if name not in _OF_ONE_HOP and not name.startswith(_PREFIXES)
    )


def refusal(error: RoutingError) -> ProxyAnswer:
    return ProxyAnswer(CODES[type(error)][1], str(error), unexecuted=True)


def outcome_of(answer: ProxyAnswer) -> Verdict:
    """What an answer by gRPC says of its worker."""
    return OF_ABORTED[answer.by] if answer.by else verdict(answer.code, 0)


def failed(error: grpc.aio.AioRpcError, worker: str) -> ProxyAnswer:
    code, details = error.code().value[0], error.details() or ""
    if code == UNAVAILABLE and details.startswith(_NO_CONNECTION):
        return ProxyAnswer(UNAVAILABLE, UNREACHED, worker=worker, unexecuted=True, by="worker")
    if code == CANCELLED and details == NOT_TAKEN:
        return ProxyAnswer(UNAVAILABLE, _NOT_TAKEN, worker=worker, unexecuted=True, by="worker")
    unexecuted = any(text in details for text in NOT_EXECUTED_TEXTS)
    initial, trailing = passed_on(error.initial_metadata() or ()), passed_on(error.trailing_metadata() or ())
    return ProxyAnswer(code, details, b"", worker, initial, trailing, unexecuted)


def http_status(answer: ProxyAnswer) -> int:
    """By which a client of HTTP hears of an answer that is none of OK."""
    return restricted.status_of(answer.details) or HTTP_STATUSES.get(answer.code, INTERNAL_CODES[0])


def retry_headers(answer: ProxyAnswer) -> dict[str, str]:
    """Headers that tell a client of HTTP when to come again; empty: the answer does not say."""
    wait_ms = next((value for name, value in answer.trailing if name == PUSHBACK), None)
    return {} if wait_ms is None else {RETRY_AFTER: str(math.ceil(int(wait_ms) / 1000))}


def pushback(answer: ProxyAnswer, wait_s: float) -> ProxyAnswer:
    trailing = (*answer.trailing, (PUSHBACK, str(max(1, round(wait_s * 1000)))))
    return ProxyAnswer(answer.code, answer.details, trailing=trailing, unexecuted=answer.unexecuted)


TEXT = "BYTES"
LENGTH_BYTES = 4
"""Before each element of a text tensor; little-endian."""
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
ONLY_BINARY = ("FP16", "BF16")
SIZES: Mapping[str, int] = {name: dtype.itemsize for name, dtype in DTYPES.items()} | dict.fromkeys(ONLY_BINARY, 2)
"""Bytes of an element."""
MOST_RANK = 32
"""Dimensions of a shape whose elements are counted: a product of thousands of large numbers takes seconds."""


def elements(shape: Sequence[int]) -> int | None:
    """How many there are; None: not to be told, as there are too many dimensions, or negative ones."""
    if len(shape) > MOST_RANK or any(size < 0 for size in shape):
        return None
    return math.prod(shape)
