"""Section `holding`."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated, Literal

from pydantic import ByteSize, Field

from balancer.core.settings import HeldModel, HoldingSettings, Order
from balancer.files.schema import Positive, StrictModel
from balancer.gateway.holding import longest_answer_s

_HOLDING, _MODEL = HoldingSettings(), HeldModel()


class HeldModelSection(StrictModel):
    """How requests to one model wait for a worker that has room."""

    window_batches: float = Field(default=_MODEL.window_batches, ge=0, le=1000)
    """A worker has room while what is unfinished there is below so many batches beyond one for each instance; 0: an
    idle instance alone has room, for models that do not batch and take long."""
    forming: bool = _MODEL.forming
    """Whether requests that wait for the same model follow one that leaves, up to a full batch."""


class HoldingSection(StrictModel):
    """Requests that wait at the balancer until a worker has room, and the order in which they leave. Off while no model
    is named. Keys that place requests, and sequences, are never held; nor is what other gateways ask."""

    models: Annotated[Mapping[str, HeldModelSection], Field(max_length=1000)] = {}
    """By name: the models whose requests wait. Those to all others are placed at once."""
    order: Order = _HOLDING.order
    """Who leaves first: `arrival`; `deadline`, the earliest, and those that cannot be met any more last; `priority`;
    `fair` among tenants; `shortest` expected service."""
    detour: Annotated[float, Field(ge=1)] | None = _HOLDING.detour
    """A worker that has room is taken instead of a better one that has none, where the request is expected to be
    complete there at most so many times as late; null: always."""
    default_deadline_s: Positive = _HOLDING.default_deadline_s
    """By order of deadline, in seconds: what counts for a request that names none."""
    longest_wait_s: Positive = _HOLDING.longest_wait_s
    """By order of priority and of shortest service, in seconds: who has waited so long goes first."""
    max_requests: int = Field(default=_HOLDING.max_requests, ge=1, le=100_000)
    """Requests that wait at most; beyond that, who would leave last does not wait."""
    max_bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(_HOLDING.max_bytes)
    """The same for their bytes, as clients declare them (`content-length`), such as `64MiB`; Envoy keeps them."""
    max_s: Annotated[float, Field(gt=0, le=300)] = _HOLDING.max_s
    """Seconds that a request waits at most. Envoy waits a little longer."""
    overflow: Literal["refuse", "place"] = _HOLDING.overflow
    """What becomes of a request beyond a bound: refused (429, RESOURCE_EXHAUSTED), or placed as if it did not wait."""
    weights: Annotated[Mapping[str, Positive], Field(max_length=1000)] = {}
    """Of tenants (`requests.tenant_header`), by order `fair`: who weighs twice as much gets twice the service; 1 for
    those that are not named."""

    def settings(self) -> HoldingSettings:
        """As the core has them."""
        plain = self.model_dump(exclude={"models", "detour", "max_bytes"})
        return HoldingSettings(
            models={name: HeldModel(row.window_batches, row.forming) for name, row in self.models.items()},
            detour=inf if self.detour is None else self.detour,
            max_bytes=int(self.max_bytes),
            **plain,
        )

    @property
    def longest_answer_s(self) -> float:
        """How long Envoy may be made to wait; 0: no longer than for any pick."""
        return longest_answer_s(self.max_s) if self.models else 0.0
