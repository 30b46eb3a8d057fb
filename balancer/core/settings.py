"""What the core is configured with: plain records, built from the validated config file by `balancer.config`.

All of it may be swapped at any moment while requests flow. Defaults live here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One row of the model table."""

    memory_bytes: int = 0
    """Device memory that the model needs; a worker known to have less is not eligible."""
    devices: tuple[str, ...] = ()
    """Device kinds it may run on; empty: any."""
    versions: tuple[str, ...] = ()
    """Versions that may be served (pinning); empty: all that are loaded."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When requests are turned away (429) rather than queued."""

    max_pending_per_worker: float = float("inf")
    """Workers with this many requests queued or executing take no more."""
    sheddable_priority: int = 0
    """Requests with this priority number or a larger (less important) one are sheddable; 0: none is."""
    sheddable_max_pending_per_worker: float = float("inf")
    """The lower limit that holds for sheddable requests."""
    shed_late: bool = False
    """Whether to shed a request whose deadline no worker is expected to meet."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The token bucket that every worker has."""

    capacity: float = 32.0
    """Tokens in a full bucket, so the largest burst to one worker."""
    refill_per_s: float = 200.0
    """Tokens a second into the bucket of a worker with an empty queue."""
    target_pending: float = 16.0
    """Pending requests at which the refill stops; it falls linearly towards there."""


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """Time constants and priors of the estimators."""

    latency_decay_s: float = 10.0
    """Time constant with which the latency average forgets a peak."""
    error_decay_s: float = 10.0
    """Time constant with which the error rate forgets."""
    service_memory: float = 200.0
    """Executions after which a batch's measured service time has lost 63% of its say."""
    service_memory_s: float = 30.0
    """Time constant with which service times are forgotten, so that a worker avoided as slow is tried again."""
    default_service_s: float = 0.010
    """Service time assumed of a worker and model of which nothing is known yet, nor of the model elsewhere."""
    tokens: TokenSettings = TokenSettings()
    profiles: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """By device kind and model, `fixed_s` and `per_row_s` as measured beforehand (`balancer profile`)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the router needs to know beside its policy."""

    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    limits: Limits = Limits()
    estimators: EstimatorSettings = EstimatorSettings()
    reports_required: bool = True
    """Whether a worker is eligible only once its agent has reported; without reports, all workers have all models."""
    stale_after_s: float = 1.0
    """Workers whose last report is older are avoided while others are fresh."""
    sticky_keys: bool = True
    """Whether a request with a routing key goes to the key's worker whatever the policy."""
    max_fallbacks: int = 2
    """Workers named after the pick, for Envoy to try where nothing was executed."""
    outcome_timeout_s: float = 300.0
    """A request whose outcome was not heard for so long no longer counts as in flight."""
