"""What the proxy is configured with; defaults live here, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often, and how soon, a request is sent again."""

    max_attempts: int = 3
    """Of one request, the first one included; 1: none is sent again."""
    base_s: float = 0.005
    """Mean wait before the second attempt; it doubles with each further one."""
    max_s: float = 0.25
    """Longest wait."""
    budget_share: float = 0.2
    """Attempts beyond the first, as a share of the requests: more retries do not help a fleet that fails them all."""
    budget_burst: float = 20.0
    """Attempts beyond the first that may come at once."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a worker gets no more requests for a model that it fails at."""

    failures: int = 5
    """In a row, by the worker's fault, that open the breaker; 0: there is none."""
    open_s: float = 5.0
    """How long it stays open before one request tries the worker again."""


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """How much each tenant may send."""

    requests_per_s: float = 0.0
    """On average; 0: no limit."""
    rows_per_s: float = 0.0
    """On average; 0: no limit."""
    burst_s: float = 1.0
    """So many seconds' worth may come at once."""


MOST_WAIT_S = 0.004
"""Of a request for others, whatever is configured."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Requests that are joined into one."""

    max_rows: int = 0
    """Of one joined request; 0: none are joined."""
    wait_s: float = 0.0005
    """Wait for others, and again while some come or each worker has a group of theirs, up to `MOST_WAIT_S`."""


@dataclass(frozen=True, slots=True)
class ConfidenceCascade:
    """Models that serve one name, one after the other until one is sure."""

    models: tuple[str, ...]
    """The fastest first."""
    output: str
    """That says how sure an answer is."""
    threshold: float
    """Below it the next model is asked."""


@dataclass(frozen=True, slots=True)
class ModelProxy:
    """What holds for one model."""

    repeatable: bool = False
    """Whether an inference may be executed twice without harm: then it is sent again also where a worker may have begun
    with it."""
    hedge: bool = False
    """Whether a repeatable request that takes longer than most goes to a second worker too."""
    once_s: float = 0.0
    """How long an id is remembered, so that its request is executed once; 0: ids are not looked at."""
    cache_ttl_s: float = 0.0
    """How long an answer serves equal requests; 0: answers are not kept."""
    batch: BatchSettings = BatchSettings()


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """All of it."""

    retries: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    tenants: TenantSettings = TenantSettings()
    tenant_limits: Mapping[str, TenantSettings] = field(default_factory=dict)
    """Of tenants with limits of their own."""
    pushback_s: float = 0.1
    """Mean time after which a client that was turned away should try again."""
    hedge_share: float = 0.05
    """Second copies, as a share of the requests that may have one."""
    hedge_min_s: float = 0.001
    """Least wait before a second copy."""
    once_entries: int = 100_000
    """Ids that are remembered at most."""
    once_bytes: int = 64 * 2**20
    """Of the answers that are kept for remembered ids."""
    cache_bytes: int = 64 * 2**20
    """Of all answers that serve equal requests."""
    models: Mapping[str, ModelProxy] = field(default_factory=dict)
    cascades: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By a name that clients ask for, the models that may serve it, the best first."""
    confidence_cascades: Mapping[str, ConfidenceCascade] = field(default_factory=dict)
    """By a name that clients ask for."""

    def of(self, model: str) -> ModelProxy:
        """What holds for a model."""
        return self.models.get(model, _PLAIN)


_PLAIN = ModelProxy()
