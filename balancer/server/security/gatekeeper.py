"""Stands before every handler of a gRPC listener: a peer without the role is refused before anything is read, and no
exception of a handler gets out as if nothing had happened.

Who a peer is: the names in its certificate, which TLS has checked.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from balancer.config.listen import WORKER
from balancer.log_throttle import LogThrottle
from balancer.server.internal_errors import InternalErrors
from balancer.server.metrics import Metrics

logger = logging.getLogger(__name__)

Handler = Any
"""grpc.RpcMethodHandler, a named tuple that the stubs do not know as one."""
_Context = grpc.aio.ServicerContext[Any, Any]
_KINDS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _names(context: _Context) -> frozenset[str]:
    """The subject alternative names, URI and DNS, of the certificate that the peer of a gRPC call showed."""
    known: Mapping[str, Any] = context.auth_context()
    # Not x509_subject_alternative_name: there, e-mail and IP addresses are mixed with them.
    return frozenset(name.decode("utf-8", "replace") for key in ("peer_uri", "peer_dns") for name in known.get(key, ()))


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The same of a certificate as `ssl.SSLSocket.getpeercert` gives it; None: the peer showed none."""
    entries = (certificate or {}).get("subjectAltName", ())
    return frozenset(name for kind, name in entries if kind in ("URI", "DNS"))


def has_role(names: frozenset[str], role: str) -> bool:
    """Whether one of the names is `role`, in which `{worker}` stands for any name."""
    before, worker, after = role.partition(WORKER)
    if not worker:
        return role in names
    shortest = len(before) + len(after)
    return any(len(name) > shortest and name.startswith(before) and name.endswith(after) for name in names)


def may_report(role: str | None) -> Callable[[Any, str], str]:
    """The rule of who may report on which worker, where clients have `role` with `{worker}` in it; None: without TLS,
    anybody may. It takes a call's context and a worker's name, and says why the caller may not; empty: it may.
    """

    def refusal(context: _Context, worker: str) -> str:
        if role is None:
            return ""
        wanted = role.replace(WORKER, worker)
        return "" if wanted in _names(context) else f"the certificate has no subject alternative name {wanted}"

    return refusal


class GuardedServer:
    """What services are added to, in place of the server: every handler that they register is wrapped."""

    def __init__(self, server: grpc.aio.Server, metrics: Metrics, role: str | None) -> None:
        """`role`: the subject alternative name that clients must have, `{worker}` in it for any; None: no TLS."""
        self._server = server
        self._metrics = metrics
        self._role = role
        self._internal_errors = InternalErrors(metrics.handler_errors, time.monotonic)
        self._throttle = LogThrottle(time.monotonic)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        guarded = tuple(_GuardedService(handler, self._guarded) for handler in generic_rpc_handlers)
        self._server.add_generic_rpc_handlers(guarded)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Generated code registers its methods this way too, beside the generic handler, which serves them as well."""

    def _guarded(self, name: str, handler: Handler) -> Handler:
        inner: Callable[..., Awaitable[Any]] = (
            handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
        )
        if inspect.isasyncgenfunction(inner):
            raise TypeError(f"{name} is a generator; write a coroutine that calls context.write")
        service = name.strip("/").split("/")[0].rpartition(".")[2]
        decode = None if handler.request_streaming else handler.request_deserializer

        async def guarded(request: Any, context: _Context) -> Any:
            try:
                return await answered(request, context)
            except grpc.aio.AbortError as error:  # it has answered with an error
                # gRPC's state of the call and this error keep each other, and the error what its traceback leads to:
                # the message too, of any size, until Python happens to look for such circles.
                del request
                error.__context__ = None
                raise error.with_traceback(None) from None

        async def answered(request: Any, context: _Context) -> Any:
            if self._role is not None and not has_role(_names(context), self._role):
                self._metrics.refused_inputs.labels(service, "certificate").inc()
                if self._throttle.due():
                    logger.warning("%s of %s refused: its certificate has no %s", name, context.peer(), self._role)
                rule = f"the certificate has no subject alternative name {self._role}"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, rule)
            try:
                return await inner(request if decode is None else decode(request), context)
            except grpc.aio.AbortError:
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
                self._internal_errors.caught(service, error)
                await context.abort(grpc.StatusCode.INTERNAL, "the balancer failed at this call; its log says how")

        # A single request is decoded after the look at the certificate, so gRPC hands it over as bytes.
        return _KINDS[handler.request_streaming, handler.response_streaming](
            guarded,
            request_deserializer=handler.request_deserializer if decode is None else None,
            response_serializer=handler.response_serializer,
        )


class _GuardedService(grpc.GenericRpcHandler):
    def __init__(self, inner: grpc.GenericRpcHandler, guarded: Callable[[str, Handler], Handler]) -> None:
        self._inner = inner
        self._guarded = guarded
        self._made: dict[int, tuple[Handler, Handler]] = {}
        """By the id of a handler: itself, which keeps the id its own, and it guarded."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        handler = self._inner.service(handler_call_details)
        if handler is None:
            return None
        if id(handler) not in self._made:
            method = handler_call_details.method
            name = method.decode() if isinstance(method, bytes) else method
            self._made[id(handler)] = (handler, self._guarded(name, handler))
        return self._made[id(handler)][1]
