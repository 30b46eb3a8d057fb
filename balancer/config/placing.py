"""The sections about where a request goes beside the policy: `holding`, `zones`, `models.NAME.split`."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from balancer.discovery.workers import ZONE
from balancer.extproc.inference_bytes import MAX_VERSION_DIGITS
from balancer.files.schema import Fraction, Positive, StrictModel, field_error
from balancer.kernel.settings import HeldModel, HoldingSettings, Order, SplitSettings, ZoneSettings

MOST_HELD_S = 300.0
_MOST_ZONES = 16
_HOLDING, _MODEL, _ZONES = HoldingSettings(), HeldModel(), ZoneSettings()


class HeldModelSection(StrictModel):
    """How requests to one model wait for a worker that has room."""

    window_batches: float = Field(default=_MODEL.window_batches, ge=0, le=1000)
    """A worker has room while so few batches are unfinished there, beyond one for each instance. 0: only an idle
    instance has room, for models that do not batch and take long."""


class HoldingSection(StrictModel):
    """Requests that wait at the balancer until a worker has room. Requests with keys or sequences, and those of other
    gateways, never wait."""

    models: Annotated[Mapping[str, HeldModelSection], Field(max_length=1000)] = {}
    """Models whose requests wait, by name."""
    order: Order = _HOLDING.order
    """Who leaves first: `arrival`; `deadline`, but those that cannot meet it last, and as of 1 s where there is none;
    `priority`; `fair` among tenants; `shortest` expected service."""
    detour: Annotated[float, Field(ge=1)] | None = _HOLDING.detour
    """A worker that has room is taken in place of a better one that has none, where completion is expected at most so
    many times as late; null: always."""
    max_requests: int = Field(default=_HOLDING.max_requests, ge=1, le=100_000)
    """Requests that wait at most; beyond, who would leave last does not wait."""
    max_s: Annotated[float, Field(gt=0, le=MOST_HELD_S)] = _HOLDING.max_s
    """Seconds that a request waits at most."""
    overflow: Literal["refuse", "place"] = _HOLDING.overflow
    """What becomes of a request beyond a bound: 429, RESOURCE_EXHAUSTED, or placed as if it did not wait."""
    weights: Annotated[Mapping[str, Positive], Field(max_length=1000)] = {}
    """By tenant (`requests.tenant_header`), for the order `fair`. A tenant of weight 2 gets twice the service;
    default 1."""

    def settings(self) -> HoldingSettings:
        plain = self.model_dump(exclude={"models", "detour"})
        return HoldingSettings(
            models={name: HeldModel(row.window_batches) for name, row in self.models.items()},
            detour=inf if self.detour is None else self.detour,
            **plain,
        )


def _each_once(zones: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({zone for zone in zones if zones.count(zone) > 1}):
        raise ValueError(f"has {', '.join(twice)} twice; name each zone once")
    return zones


Zone = Annotated[str, StringConstraints(pattern=ZONE, min_length=1)]
ZoneOrder = Annotated[tuple[Zone, ...], Field(max_length=_MOST_ZONES), AfterValidator(_each_once)]


class ZonesSection(StrictModel):
    """Workers of the balancer's own zone first. A request goes farther where that is sooner by more than a bound, or
    where no nearer worker may serve it. Keys and sequences stay with their worker."""

    own: Annotated[Zone | None, BeforeValidator(lambda value: None if value == "" else value)] = None
    """The balancer's zone, as in `discovery.workers[].zone`; null or empty: zones do not matter."""
    bound_s: float = Field(default=_ZONES.bound_s, ge=0, le=3600)
    """Nearer workers are preferred while the best of them is expected to be done at most so many seconds later."""
    order: ZoneOrder = _ZONES.order
    """Zones, nearest first, such as `[edge, region, core]`, the same list for all balancers: the own zone always comes
    first. Others come last."""

    def settings(self) -> ZoneSettings:
        return ZoneSettings(self.own or "", self.bound_s, self.order)


def _is_version(value: str) -> str:
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_VERSION_DIGITS):
        raise ValueError(f"must be 1 to {MAX_VERSION_DIGITS} digits, as Triton's versions are")
    return value


Version = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    AfterValidator(_is_version),
]
"""A version of a model. The config may write it as a number; Triton takes text."""


class SplitSection(StrictModel):
    """A share of the unary inferences that name no version gets a new one: by routing key or sequence where there is
    one, else by chance. All go back to the old one where the new one fails or is slow more often. Streams, compressed
    gRPC, and gRPC of gateways that hand over no bodies get Triton's choice."""

    old: Version
    """The version of most requests."""
    new: Version
    """The version that is tried."""
    share: Fraction = 0.2
    """Share of requests that get the new version."""

    @model_validator(mode="after")
    def _two_versions(self) -> Self:
        if self.old == self.new:
            raise field_error(("new",), self.new, "is the old version; name another, or remove split")
        return self

    def check(self, model: str, served: tuple[str, ...]) -> None:
        """Refuse a split of a model into versions of which one may not be served; `served`: that may be, empty: all."""
        for field in ("old", "new"):
            version = getattr(self, field)
            if served and version not in served:
                rule = f"is not among models.{model}.versions; add it there, or name one of them"
                raise field_error(("models", model, "split", field), version, rule)

    def settings(self) -> SplitSettings:
        return SplitSettings(self.old, self.new, self.share)
