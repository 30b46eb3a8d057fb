"""What the core is configured with: plain records, built from the validated config file by `balancer.config`.

All of it may be swapped at any moment while requests flow. Defaults live here, once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal


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

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return self.shed_late or self.max_pending_per_worker < inf or self.sheddable_max_pending_per_worker < inf


@dataclass(frozen=True, slots=True)
class ZoneSettings:
    """Which workers are near, and how much longer a request waits for one of them."""

    own: str = ""
    """Of the balancer; empty: zones do not matter."""
    bound_s: float = 0.02
    """Nearer workers are preferred while one is expected to be done so much later than the best farther one at most."""
    order: tuple[str, ...] = ()
    """Zones after the own one, nearest first; all that are not named are equally far behind them."""


Order = Literal["arrival", "deadline", "priority", "fair", "shortest"]


@dataclass(frozen=True, slots=True)
class HeldModel:
    """How requests to one model are held."""

    window_batches: float = 1.0
    """A worker has room while what is unfinished there is below so many batches beyond one for each instance; 0: an
    idle instance alone has room."""
    forming: bool = True
    """Whether requests held for the same model follow one that leaves, up to a full batch."""


@dataclass(frozen=True, slots=True)
class HoldingSettings:
    """Which requests wait at the balancer until a worker has room, and in which order they leave."""

    models: Mapping[str, HeldModel] = field(default_factory=dict)
    """Models whose requests are held; those to all others are placed at once. Empty: holding is off."""
    order: Order = "deadline"
    """Who leaves first: `arrival`; `deadline`, the earliest, and those that cannot be met any more last; `priority`;
    `fair` among tenants; `shortest` expected service."""
    detour: float = 1.0
    """A worker that has room is taken instead of a better one that has none, where the request is expected to be
    complete there at most so many times as late."""
    default_deadline_s: float = 1.0
    """By order of deadline: what counts for a request that names none."""
    longest_wait_s: float = 1.0
    """By order of priority and of shortest service: who has waited so long goes first."""
    max_requests: int = 1000
    """Requests held at most."""
    max_bytes: int = 67_108_864
    """Bytes of requests held at most, as far as their size is known."""
    max_s: float = 10.0
    """How long a request is held at most."""
    overflow: Literal["refuse", "place"] = "refuse"
    """What becomes of a request beyond a bound: refused (429), or placed as if it were not held."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of tenants, by order `fair`; 1 for those that are not named."""


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
    key_memory: float = 300.0
    """New keys sent to a worker after which 63% of those that its cache had are taken to be gone. Of no
    effect with `sticky_keys`."""
    tokens: TokenSettings = TokenSettings()
    profiles: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """By device kind and model, `fixed_s` and `per_row_s` as measured beforehand (`balancer profile`)."""


@dataclass(frozen=True, slots=True)
class Margins:
    """What an arm may do worse without being called worse."""

    late: float = 0.02
    """Share of requests that miss their deadline, in addition to the other's."""
    tail: float = 0.1
    """Latency of the slow requests, relative: 0.1 is 10% slower."""
    errors: float = 0.01
    """Share of requests that fail by the worker's fault, in addition to the other's."""


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """How the requests of a model that name no version are shared by two."""

    old: str
    new: str
    share: float
    """Of the requests that get the new one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the router needs to know beside its policy."""

    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    limits: Limits = Limits()
    zones: ZoneSettings = ZoneSettings()
    holding: HoldingSettings = HoldingSettings()
    estimators: EstimatorSettings = EstimatorSettings()
    reports_required: bool = True
    """Whether a worker is eligible only once its agent has reported; without reports, all workers have all models."""
    stale_after_s: float = 1.0
    """Workers whose last report is older are avoided while others are fresh."""
    sticky_keys: bool = True
    """Whether a request with a routing key goes to the key's worker whatever the policy."""
    max_fallbacks: int = 2
    """Workers named after the pick, for Envoy to try where nothing was executed."""
    slow_start_s: float = 0.0
    """How long a worker that joins others gets part of its requests only, while its service times are not known; 0: it
    gets all at once."""
    sampled_workers: float = 32.0
    """A decision looks at about so many of the workers that may be picked, where they are more than sixteen times as
    many; 0: at all of them."""
    outcome_timeout_s: float = 300.0
    """A request whose outcome was not received for so long no longer counts as in flight."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """When a policy is replaced by a baseline, and when it returns."""

    report_age_s: float = 0.5
    """A report that is older counts as missing; several times the usual period."""
    report_share: float = 0.5
    """More than this share of the eligible workers without such a report is a breach."""
    range_limit: float = 0.25
    """Inputs farther outside of the range of training, in widths of it, are strange (`Policy.out_of_range`)."""
    range_share: float = 0.5
    """More than this share of the recent decisions on strange inputs is a breach."""
    decision_s: float = 0.005
    """A decision that takes longer is slow; more than one in ten, or a few that are much slower, are a breach."""
    quiet_s: float = 10.0
    """How long no cause may be seen before the policy returns."""
    max_quiet_s: float = 600.0
    """The quiet period doubles up to here with each breach that comes sooner than this after a return."""
    window_s: float = 0.25
    """Length of a window of the comparison with the baseline; 0: no comparison."""
    settle_s: float = 0.1
    """At the start of a window, what is left out: its requests meet the queues that the other policy left."""
    window_every_s: float = 5.0
    """Mean time from one window of the baseline to the next."""
    margins: Margins = Margins()
    false_alarm_pairs: float = 10_000.0
    """Mean number of pairs of windows, at least, from one false alarm of the comparison to the next."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How traffic moves from the policy in force to another."""

    shares: tuple[float, ...] = (0.01, 0.05, 0.2, 0.5, 1.0)
    """Of the requests that the new policy decides, step by step; at 1 it is watched against the old one."""
    step_s: float = 300.0
    """Least duration of a step."""
    min_requests: int = 100
    """Outcomes of either policy without which a step does not end."""
    watch_s: float = 1800.0
    """At share 1, how long there must be no evidence against the new policy until the rollout is finished."""
    watch_pairs: int = 100
    """And so many pairs of windows in which both were compared."""
    guard: GuardSettings = GuardSettings()
    """Of the new policy while it is rolled out: margins, windows against the old policy, inputs, slowness."""
