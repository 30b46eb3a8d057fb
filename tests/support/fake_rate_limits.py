"""A stand-in for a rate limit service: it speaks the real protocol (RLS v3), and counts in memory."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.service.ratelimit.v3 import rls_pb2

Counted = tuple[str, str, str]
"""Domain, key and value."""


@dataclass
class FakeRateLimitService:
    """Lets the first requests of each value pass, as many as `limits` says, and all of others."""

    limits: dict[str, int] = field(default_factory=dict)
    counts: Counter[Counted] = field(default_factory=Counter)
    credentials: grpc.ServerCredentials | None = None
    """None: plain text."""
    port: int = 0
    _server: grpc.aio.Server | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler = grpc.unary_unary_rpc_method_handler(
            self._decide,
            request_deserializer=rls_pb2.RateLimitRequest.FromString,
            response_serializer=rls_pb2.RateLimitResponse.SerializeToString,
        )
        service = "envoy.service.ratelimit.v3.RateLimitService"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"ShouldRateLimit": handler}),))
        if self.credentials is None:
            self.port = server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = server.add_secure_port("127.0.0.1:0", self.credentials)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _decide(self, request: rls_pb2.RateLimitRequest, context: Any) -> rls_pb2.RateLimitResponse:
        ((entry,),) = [descriptor.entries for descriptor in request.descriptors]
        counted = (request.domain, entry.key, entry.value)
        self.counts[counted] += 1
        over = self.counts[counted] > self.limits.get(entry.value, self.counts[counted])
        codes = rls_pb2.RateLimitResponse
        return rls_pb2.RateLimitResponse(overall_code=codes.OVER_LIMIT if over else codes.OK)
