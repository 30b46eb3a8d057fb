"""Stands before every handler of a listener: a peer without the role is refused before anything is read, and no
exception of a handler gets out as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from balancer.operate.metrics import Metrics
from balancer.operate.mistakes import Mistakes
from balancer.security import identity
from balancer.seldom import Seldom

logger = logging.getLogger(__name__)

Handler = Any
"""grpc.RpcMethodHandler, a named tuple that the stubs do not know as one."""


class Gatekeeper:
    """Wraps the handlers of one listener."""

    def __init__(self, metrics: Metrics, role: str | None) -> None:
        """`role`: the subject alternative name that clients must have, `{worker}` in it for any; None: no TLS."""
        self._metrics = metrics
        self._role = role
        self._mistakes = Mistakes(metrics.handler_errors, time.monotonic)
        self._seldom = Seldom(time.monotonic)

    def wrap(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """The same service, guarded."""
        return _Guarded(handler, self)

    def method(self, name: str, handler: Handler) -> Handler:
        """One method, guarded; `name` is its path."""
        inner: Callable[..., Awaitable[Any]] = (
            handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
        )
        if inspect.isasyncgenfunction(inner):
            raise TypeError(f"{name} is a generator; write a coroutine that calls context.write")
        service = name.strip("/").split("/")[0].rpartition(".")[2]
        decode = None if handler.request_streaming else handler.request_deserializer

        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if self._role is not None and not identity.has_role(identity.names(context), self._role):
                self._metrics.refused_inputs.labels(service, "certificate").inc()
                if self._seldom.due():
                    logger.warning("%s of %s refused: its certificate has no %s", name, context.peer(), self._role)
                rule = f"the certificate has no subject alternative name {self._role}"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, rule)
            try:
                return await inner(request if decode is None else decode(request), context)
            except grpc.aio.AbortError:  # it has answered with an error
                raise
            except grpc.aio.InternalError as error:
                # The peer has left, as far as gRPC says. It would log this with a traceback each time.
                try:
                    await context.abort(grpc.StatusCode.CANCELLED, "the call ended while it was answered")
                except (grpc.aio.InternalError, grpc.aio.UsageError):
                    raise asyncio.CancelledError from error
            except DecodeError:
                self._metrics.refused_inputs.labels(service, "encoding").inc()
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is not one of {name}")
            except Exception as error:
                self._mistakes.caught(service, error)
                await context.abort(grpc.StatusCode.INTERNAL, "the balancer failed at this call; its log says how")

        kind = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        # A single request is decoded after the look at the certificate, so gRPC hands it over as bytes.
        deserializer = handler.request_deserializer if decode is None else None
        return kind(guarded, request_deserializer=deserializer, response_serializer=handler.response_serializer)


class _Guarded(grpc.GenericRpcHandler):
    def __init__(self, inner: grpc.GenericRpcHandler, keeper: Gatekeeper) -> None:
        self._inner = inner
        self._keeper = keeper
        self._made: dict[int, tuple[Handler, Handler]] = {}
        """By the id of a handler: itself, which keeps the id its own, and it guarded."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """The guarded handler of a call."""
        handler = self._inner.service(handler_call_details)
        if handler is None:
            return None
        made = self._made.get(id(handler))
        if made is None:
            method = handler_call_details.method
            name = method.decode() if isinstance(method, bytes) else method
            made = self._made[id(handler)] = (handler, self._keeper.method(name, handler))
        return made[1]


class GuardedServer:
    """What services are added to, in place of the server: everything that they register is wrapped."""

    def __init__(self, server: grpc.aio.Server, keeper: Gatekeeper) -> None:
        self._server = server
        self._keeper = keeper

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """As of a server."""
        self._server.add_generic_rpc_handlers(tuple(self._keeper.wrap(handler) for handler in generic_rpc_handlers))

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Generated code registers its methods this way too, beside the generic handler, which serves them as well."""
