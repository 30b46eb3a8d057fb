"""Asks one worker by gRPC, as a client would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from balancer.fleet.asking import FailedError, Failure
from balancer.gateway.kserve import SERVICE
from balancer.workers import restricted
from balancer.workers.channels import Channels, UnknownWorkerError
from balancer.workers.restricted import Headers

_METHODS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
REQUESTS: Mapping[str, type[Message]] = {name: GetMessageClass(its.input_type) for name, its in _METHODS.items()}
RESPONSES: Mapping[str, type[Message]] = {name: GetMessageClass(its.output_type) for name, its in _METHODS.items()}


def gone(worker: str) -> FailedError:
    """Of a worker that has left since."""
    return FailedError(Failure(grpc.StatusCode.UNAVAILABLE, f"{worker} is not listed any more"))


async def ask(channels: Channels, worker: str, method: str, request: Message, headers: Headers = ()) -> Any:
    """One worker's answer.

    Raises:
        FailedError: what it said in place of one.
    """
    try:
        # With the methods' own serializers, a message that is none would end in gRPC's words.
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channels.of(worker).unary_unary(f"{SERVICE}{method}")
        return RESPONSES[method].FromString(await call(request.SerializeToString(), metadata=headers))
    except UnknownWorkerError as error:
        raise gone(worker) from error
    except grpc.aio.AioRpcError as error:
        words = error.details() or ""
        raise FailedError(Failure(error.code(), words, restricted.status_of(words))) from error
    except DecodeError as error:
        raise FailedError(Failure(grpc.StatusCode.INTERNAL, f"{worker} answered what is no answer")) from error
