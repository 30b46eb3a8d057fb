"""Section `proxy`: what the front end `proxy` does beside forwarding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import ByteSize, Field, model_validator

from balancer.core import bounds
from balancer.files.schema import Fraction, NotNegative, Positive, StrictModel, field_error
from balancer.proxy.rules.settings import (
    MOST_WAIT_S,
    BatchSettings,
    BreakerSettings,
    ConfidenceCascade,
    ModelProxy,
    ProxySettings,
    RetrySettings,
    TenantSettings,
)

_PROXY = ProxySettings()
_RETRIES = RetrySettings()
_BREAKER = BreakerSettings()
_TENANTS = TenantSettings()
_MODEL = ModelProxy()

Seconds = Annotated[float, Field(ge=0, le=3600)]
StoredBytes = Annotated[ByteSize, Field(ge=0, le=2**36)]


class RetriesSection(StrictModel):
    """When a request is sent to another worker. Where nothing was executed, or the request is repeatable; never one of
    a sequence."""

    max_attempts: int = Field(default=_RETRIES.max_attempts, ge=1, le=16)
    """Of one request, the first one included; 1: none is sent again."""
    base_s: Seconds = _RETRIES.base_s
    """Mean wait before the second attempt, in seconds; it doubles with each further one, and is spread by chance."""
    max_s: Seconds = _RETRIES.max_s
    """Longest wait, in seconds."""
    budget_share: Fraction = _RETRIES.budget_share
    """Attempts beyond the first, as a share of all requests: where most fail, more attempts do not help."""
    budget_burst: Annotated[float, Field(ge=1, le=1e6)] = _RETRIES.budget_burst
    """Attempts beyond the first that may come at once."""


class BreakerSection(StrictModel):
    """A worker that fails at a model again and again gets none of its requests for a while, then one that tries. Where
    all workers of a model fail so, breakers do not count."""

    failures: int = Field(default=_BREAKER.failures, ge=0, le=1000)
    """In a row, by the worker's fault, that open the breaker; 0: there is none."""
    open_s: Seconds = _BREAKER.open_s
    """Seconds until one request tries the worker again."""


class TenantLimitsSection(StrictModel):
    """What one tenant may send; beyond it, RESOURCE_EXHAUSTED. Each balancer process counts alone."""

    requests_per_s: NotNegative = _TENANTS.requests_per_s
    """Requests a second; 0: no limit."""
    rows_per_s: NotNegative = _TENANTS.rows_per_s
    """Rows a second; 0: no limit."""
    burst_s: Annotated[float, Field(gt=0, le=3600)] = _TENANTS.burst_s
    """So many seconds' worth may come at once."""

    def settings(self) -> TenantSettings:
        """As the proxy has them."""
        return TenantSettings(**dict(self))


class TenantsSection(TenantLimitsSection):
    """What each tenant may send, as Envoy or the header `requests.tenant_header` names them; beyond it,
    RESOURCE_EXHAUSTED. Each balancer process counts alone."""

    named: Mapping[str, TenantLimitsSection] = {}
    """Tenants with limits of their own, by name."""


class HedgingSection(StrictModel):
    """Second copies of slow requests; models opt in (`models.NAME.proxy.hedge`)."""

    share: Fraction = _PROXY.hedge_share
    """Second copies, as a share of the requests that may have one."""
    min_s: Seconds = _PROXY.hedge_min_s
    """Least wait before a second copy, in seconds, where 95% of the model's requests take less."""


class BatchSection(StrictModel):
    """Requests of one model that wait for each other and go to one worker as one, joined along the first dimension.
    Only for models that batch, with raw tensors, without parameters, sequences or routing keys; others go alone."""

    max_rows: int = Field(default=_MODEL.batch.max_rows, ge=0, le=bounds.MAX_ROWS)
    """Rows of a joined request, no more than the model's `max_batch_size`; 0: none are joined."""
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = _MODEL.batch.wait_s
    """Seconds of waiting for others; again while some come or each worker has a group of theirs, up to 0.004 in all."""


Name = Annotated[str, Field(min_length=1, max_length=bounds.MAX_TEXT_BYTES)]


class ModelProxySection(StrictModel):
    """What the front end `proxy` does for one model."""

    repeatable: bool = _MODEL.repeatable
    """Whether an inference may be executed twice without harm: then it is sent again also where a worker may have begun
    with it. Clients say so of one request by the header `x-repeatable: true`."""
    hedge: bool = _MODEL.hedge
    """Whether a repeatable request that takes longer than 95% of its model's goes to a second worker too; the first
    answer counts."""

    once_s: Seconds = _MODEL.once_s
    """Seconds for which an id (`id` of the message) is remembered after its request has ended: whoever sends the same
    request again, of the same tenant and bytes, gets the first answer, or waits for it. 0: ids are not looked at. Needs
    one balancer process: an id that comes to another gateway is executed there."""
    cache_ttl_s: Seconds = _MODEL.cache_ttl_s
    """Seconds for which an answer serves requests of the same caller that are equal but for their id; 0: answers are
    not kept. Not for models that answer the same request differently."""
    batch: BatchSection = BatchSection()
    """Requests that are joined."""

    @model_validator(mode="after")
    def _joined_are_repeatable(self) -> Self:
        if self.batch.max_rows and not self.repeatable:
            rule = "needs repeatable: true, since a joined request that fails is sent again one by one"
            raise field_error(("batch", "max_rows"), self.batch.max_rows, rule)
        return self

    def settings(self) -> ModelProxy:
        """As the proxy has them."""
        batch = BatchSettings(**dict(self.batch))
        return ModelProxy(self.repeatable, self.hedge, self.once_s, self.cache_ttl_s, batch)


class ConfidenceCascadeSection(StrictModel):
    """Models that serve a name, one after the other until the answer is sure enough. For unary requests; a sequence,
    and a request with outputs in shared memory, gets the first. The answer is that of the last model that was asked; of
    the one before, where the next fails, has no worker, or would not be done in time: within the deadline, less a tenth
    of it (10 to 100 ms)."""

    models: Annotated[tuple[Name, ...], Field(min_length=2, max_length=16)]
    """The fastest first, the most accurate last."""
    output: Name
    """The output (FP16, FP32 or FP64, 256 KiB at most) that says how sure an answer is: of each row the greatest
    element, and of those the least. Rows are the first dimension; with one dimension there is one row. An answer that
    has no such output, as its client asked for others, is not sure."""
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    """An answer with less goes on to the next model."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for number, model in enumerate(self.models):
            if model in self.models[:number]:
                raise field_error(("models", number), model, "is named twice; name each model once")
        return self

    def settings(self) -> ConfidenceCascade:
        """As the proxy has them."""
        return ConfidenceCascade(self.models, self.output, self.threshold)


class ProxySection(StrictModel):
    """What the front end `proxy` does beside forwarding; see also `models.NAME.proxy`."""

    retries: RetriesSection = RetriesSection()
    """Requests that are sent again."""
    breaker: BreakerSection = BreakerSection()
    """Workers that are left alone for a while."""
    tenants: TenantsSection = TenantsSection()
    """Limits of each tenant."""
    pushback_s: Positive = _PROXY.pushback_s
    """Mean seconds after which a client that was turned away should try again (trailer `grpc-retry-pushback-ms`)."""
    hedging: HedgingSection = HedgingSection()
    """Second copies of slow requests."""
    cascades: Mapping[str, Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]] = {}
    """Models that may serve a name, the best first, by the name that clients ask for: a unary request goes to the first
    that is expected to be done within its deadline, else to the last that has a worker. Without a deadline it goes to
    the first that has a worker. Header and trailer `x-served-model` name it."""
    confidence_cascades: Mapping[Name, ConfidenceCascadeSection] = {}
    """Models that serve a name one after the other, until one is sure, by the name that clients ask for. Header and
    trailer `x-served-model` name the one that answered."""

    once_entries: Annotated[int, Field(ge=2, le=10_000_000)] = _PROXY.once_entries
    """Ids that are remembered at most, a tenant's half of them; where there is no room, requests with further ids are
    turned away."""
    once_bytes: StoredBytes = ByteSize(_PROXY.once_bytes)
    """Of the answers that are kept for ids; one that is no longer kept is answered ALREADY_EXISTS."""
    cache_bytes: StoredBytes = ByteSize(_PROXY.cache_bytes)
    """Of the answers that serve equal requests; the least recently used go first."""

    @model_validator(mode="after")
    def _cascades_end(self) -> Self:
        names = {*self.cascades, *self.confidence_cascades}
        for name in self.confidence_cascades:
            if name in self.cascades:
                raise field_error(("confidence_cascades", name), name, "is in cascades too; leave it in one of both")
        places: dict[tuple[str, ...], tuple[str, ...]] = {
            ("cascades", name): steps for name, steps in self.cascades.items()
        }
        places |= {
            ("confidence_cascades", name, "models"): each.models for name, each in self.confidence_cascades.items()
        }
        for place, steps in places.items():
            for number, step in enumerate(steps):
                if step in names:
                    raise field_error((*place, number), step, "is a cascade itself; name a model")
        return self

    def settings(self, models: Mapping[str, ModelProxySection]) -> ProxySettings:
        """As the proxy has them; `models` by name."""
        own = self.tenants
        return ProxySettings(
            retries=RetrySettings(**dict(self.retries)),
            breaker=BreakerSettings(**dict(self.breaker)),
            tenants=TenantSettings(own.requests_per_s, own.rows_per_s, own.burst_s),
            tenant_limits={name: limits.settings() for name, limits in own.named.items()},
            pushback_s=self.pushback_s,
            hedge_share=self.hedging.share,
            hedge_min_s=self.hedging.min_s,
            once_entries=self.once_entries,
            once_bytes=int(self.once_bytes),
            cache_bytes=int(self.cache_bytes),
            cascades=dict(self.cascades),
            confidence_cascades={name: section.settings() for name, section in self.confidence_cascades.items()},
            models={name: section.settings() for name, section in models.items()},
        )
