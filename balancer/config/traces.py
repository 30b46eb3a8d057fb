"""Section `envoy.traces`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from balancer.files.schema import Address, Fraction, StrictModel
from balancer.gateway.bootstrap_traces import TraceOptions


class TracesSection(StrictModel):
    """Traces of requests, which Envoy sends to a collector over OTLP, and the worker's Triton goes on with."""

    collector: Address
    """Where OTLP over gRPC is taken, in plain text: a collector on the same machine, by custom at port 4317."""
    share: Fraction = 0.01
    """The share of requests that are traced, of those without a trace of their own: 0 is none, 1 all."""
    service: Annotated[str, Field(min_length=1, max_length=256)] = "gateway"
    """Envoy's `service.name`."""
    follow_clients: bool = True
    """Whether a client's `traceparent` is gone on with, and says whether the request is traced; false: it is removed,
    so that nobody outside has requests traced."""

    def options(self) -> TraceOptions:
        """What the bootstrap is printed from."""
        return TraceOptions(self.collector, self.share, self.service, self.follow_clients)
