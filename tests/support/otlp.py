"""Takes spans over OTLP, by gRPC and by HTTP, as a collector does."""

import base64
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from balancer.stack.process import free_ports

_IDS = {"traceId", "spanId", "parentSpanId"}
_OLD = {"scopeSpans": "instrumentationLibrarySpans"}
"""What the messages at hand call it; its number is the same."""
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass(frozen=True)
class Span:
    """One span, as tests look at it."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    seconds: float
    attributes: dict[str, str]
    events: tuple[str, ...]


@dataclass
class OtlpReceiver:
    """Keeps what comes."""

    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.grpc_port, self.http_port = free_ports(2)

    async def start(self) -> None:
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._export, trace_service_pb2.ExportTraceServiceRequest.FromString, lambda _: b""
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler}),))
        self._server.add_insecure_port(f"127.0.0.1:{self.grpc_port}")
        await self._server.start()
        app = web.Application()
        app.router.add_post("/v1/traces", self._post)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.http_port).start()

    async def stop(self) -> None:
        await self._server.stop(None)
        await self._runner.cleanup()

    def of(self, trace: str, service: str) -> list[Span]:
        """Spans of that trace by that service."""
        return [span for span in self.spans if span.trace == trace and span.service == service]

    async def _export(self, request: Any, context: Any) -> None:
        self._take(request)

    async def _post(self, request: web.Request) -> web.Response:
        if request.content_type == "application/json":
            content, export = _with_bytes(await request.json()), trace_service_pb2.ExportTraceServiceRequest()
            json_format.ParseDict(content, export, ignore_unknown_fields=True)
        else:
            export = trace_service_pb2.ExportTraceServiceRequest.FromString(await request.read())
        self._take(export)
        return web.Response(content_type="application/x-protobuf")

    def _take(self, request: Any) -> None:
        for each in request.resource_spans:
            service = _texts(each.resource.attributes).get("service.name", "")
            for scope in each.instrumentation_library_spans:
                self.spans += [_span(service, span) for span in scope.spans]


def _with_bytes(content: Any) -> Any:
    """OTLP's JSON has ids in hexadecimal, protobuf's in base 64."""
    if isinstance(content, list):
        return [_with_bytes(each) for each in content]
    if isinstance(content, dict):
        return {
            _OLD.get(key, key): base64.b64encode(bytes.fromhex(value)).decode() if key in _IDS else _with_bytes(value)
            for key, value in content.items()
        }
    return content


def _span(service: str, span: Any) -> Span:
    return Span(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        (span.end_time_unix_nano - span.start_time_unix_nano) * 1e-9,
        _texts(span.attributes),
        tuple(event.name for event in span.events),
    )


def _texts(attributes: Any) -> dict[str, str]:
    return {each.key: str(getattr(each.value, each.value.WhichOneof("value") or "string_value")) for each in attributes}
