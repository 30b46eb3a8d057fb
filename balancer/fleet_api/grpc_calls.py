"""Calls about the fleet by gRPC: Triton's own service, and gRPC's health as Triton has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from balancer.bounds import OutOfBoundsError
from balancer.channels import restricted
from balancer.channels.channels import Channels
from balancer.extproc.kserve import CHANGES, HEALTH, MEMORY_STATUS, METHODS, SERVICE, SETTINGS, Kind
from balancer.extproc.names import FLEET_SERVICE, MISSING_HEADER, PRINCIPAL_HEADER
from balancer.fleet_api import fan_out
from balancer.fleet_api.control import Control
from balancer.fleet_api.fan_out import REQUESTS, RESPONSES, FailedError, FleetCallCounts, message, plain
from balancer.fleet_api.questions import Question, Questions

Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[str, Any, Context], Awaitable[Message]]


class GrpcCalls:
    def __init__(
        self,
        questions: Questions,
        control: Control,
        channels: Channels,
        counts: FleetCallCounts,
        known: Callable[[], bool],
    ) -> None:
        """`known`: whether it is known which workers there are; before that, Envoy sends calls to a worker."""
        self._questions = questions
        self._control = control
        self._channels = channels
        self._counts = counts
        self._known = known

    def add_to(self, server: grpc.aio.Server) -> None:
        questions = [method for method, kind in METHODS.items() if kind in (Kind.SERVER, Kind.MODEL)]
        methods: dict[str, Method] = dict.fromkeys((*questions, *MEMORY_STATUS), self._question)
        methods |= {"ServerLive": self._live}
        methods |= dict.fromkeys(SETTINGS, self._settings)
        methods |= dict.fromkeys(CHANGES, self._change)
        handlers = {name: self._handler(name, method) for name, method in methods.items()}
        check = grpc.unary_unary_rpc_method_handler(
            self._check,
            request_deserializer=health_pb2.HealthCheckRequest.FromString,
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        )
        services = ((SERVICE, handlers), (HEALTH, {"Check": check}))
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(path.strip("/"), its) for path, its in services)
        )

    def _handler(self, name: str, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        async def handle(sent: bytes, context: Context) -> Message:
            try:
                answer = await method(name, REQUESTS[name].FromString(sent), context)
            except DecodeError:
                # A client's, and no sign that Envoy fails, as it would be elsewhere.
                self._counts.calls.labels(name, "invalid").inc()
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is not one of {name}")
            except FailedError as error:
                self._counts.calls.labels(name, "failed").inc()
                await context.abort(error.failure.code, error.failure.words)
            except OutOfBoundsError as error:
                self._counts.calls.labels(name, "invalid").inc()
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            self._counts.calls.labels(name, "answered").inc()
            return answer

        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=RESPONSES[name].SerializeToString)

    async def _live(self, name: str, request: Any, context: Context) -> Message:
        return message(RESPONSES[name], {"live": True})

    async def _question(self, name: str, request: Any, context: Context) -> Message:
        headers = restricted.of_grpc(context.invocation_metadata() or ())
        answer = await self._questions.answer(self._question_of(name, request, headers))
        if answer.missing:
            context.set_trailing_metadata(((MISSING_HEADER, ",".join(answer.missing)[:1024]),))
        content = {"models": answer.content} if name == "RepositoryIndex" else answer.content
        if name.endswith("SharedMemoryStatus"):
            content = {"regions": content}
        return message(RESPONSES[name], content)

    def _question_of(self, name: str, request: Any, headers: restricted.Headers) -> Question:
        """The question of a request. What the index is asked for is the same for all; its filter is applied to all."""
        sent = REQUESTS[name](repository_name=request.repository_name) if name == "RepositoryIndex" else request

        async def ask(worker: str) -> Any:
            content = plain(await fan_out.ask(self._channels, worker, name, sent, headers))
            if name == "RepositoryIndex":
                return content["models"]
            return content["regions"] if name.endswith("SharedMemoryStatus") else content

        about = getattr(request, "name", "") or getattr(request, "model_name", "")
        version = getattr(request, "version", "") or getattr(request, "repository_name", "")
        return Question(name, "grpc", ask, about, version, getattr(request, "ready", False), headers)

    async def _settings(self, name: str, request: Any, context: Context) -> Message:
        return await (self._change if request.settings else self._question)(name, request, context)

    async def _change(self, name: str, request: Any, context: Context) -> Message:
        metadata = list(context.invocation_metadata() or ())
        principal = next((str(value) for key, value in metadata if key == PRINCIPAL_HEADER), "")
        return await self._control.change(name, request, principal, restricted.of_grpc(metadata))

    async def _check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Message:
        """Whether the server is ready, whatever service is named, be it invented: as Triton 2.51, which has no Watch.

        Envoy asks for a name of ours.
        """
        if request.service == FLEET_SERVICE:
            return _status(self._known())
        ready = REQUESTS["ServerReady"]()
        headers = restricted.of_grpc(context.invocation_metadata() or ())
        answer = await self._questions.answer(self._question_of("ServerReady", ready, headers))
        return _status(answer.content["ready"])


def _status(serving: bool) -> health_pb2.HealthCheckResponse:
    status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    return health_pb2.HealthCheckResponse(status=status)
