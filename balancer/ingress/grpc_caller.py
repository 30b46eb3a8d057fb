"""Messages that are KServe's protobuf: sent and answered as they are, by gRPC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import grpc

from balancer.balancer_tls import BalancerTls, credentials
from balancer.extproc import inference_bytes
from balancer.extproc.kserve import SERVICE
from balancer.extproc.responses import HTTP_STATUSES, INTERNAL_CODES, PUSHBACK
from balancer.ingress.outcomes import (
    LATE,
    MAX_ANSWER_BYTES,
    MAX_REASON_BYTES,
    Answer,
    Failure,
    broken,
    refusal,
    unreached,
)

INFER_PATH = f"{SERVICE}ModelInfer"
PROTOBUF = "application/x-protobuf"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", -1),
    # Who calls decides what is sent again, and when.
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)
_OF_HTTP = frozenset(("accept", "content-type", "inference-header-content-length"))
_TOO_LONG = "Received message larger than max"
"""What gRPC's own end says of an answer that it does not take."""


def model_of(body: bytes) -> str:
    """That a ModelInferRequest names.

    Raises:
        OutOfBoundsError: it is none.
    """
    return "".join(map(str, inference_bytes.read(body).fields["model_name"]))


class GrpcCaller:
    def __init__(self, listener: str, tls: BalancerTls | None) -> None:
        """`listener`: its URL."""
        parts = urlsplit(listener)
        self._listener = listener
        target = parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"
        if parts.scheme == "http":
            self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            known = grpc.ssl_channel_credentials() if tls is None else credentials(tls)
            name = () if tls is None else (("grpc.ssl_target_name_override", tls.server_name),)
            self._channel = grpc.aio.secure_channel(target, known, options=(*_OPTIONS, *name))
        self._infer: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(INFER_PATH)

    async def close(self, grace_s: float | None = None) -> None:
        await self._channel.close(grace_s)

    async def call(self, body: bytes, headers: Mapping[str, str], left_s: float) -> Answer | Failure:
        metadata = [(name.lower(), value) for name, value in headers.items() if name not in _OF_HTTP]
        try:
            said: bytes = await self._infer(body, timeout=left_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return self._failure(error)
        return Answer(said, {"content-type": PROTOBUF, "x-status": "0"})

    def _failure(self, error: grpc.aio.AioRpcError) -> Failure:
        code, said = error.code(), (error.details() or "")[:MAX_REASON_BYTES]
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return LATE
        if _TOO_LONG in said:
            return Failure(f"the answer has more than {MAX_ANSWER_BYTES} bytes", final=True)
        trailers = {name: str(value) for name, value in error.trailing_metadata() or ()}
        if code is grpc.StatusCode.UNAVAILABLE and not trailers and not error.initial_metadata():
            # Of gRPC's own end: nobody else said it.
            return unreached(self._listener, said) if "connect" in said.split("; ")[0] else broken(said)
        pushback = trailers.get(PUSHBACK, "")
        after_s = float(pushback) / 1e3 if re.fullmatch(r"[0-9]{1,8}", pushback) else 0.0
        return refusal(HTTP_STATUSES.get(code.value[0], INTERNAL_CODES[0]), said, after_s)
