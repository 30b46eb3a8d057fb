"""What a decision reads and writes beside the estimators, as arrays: one layout for production and simulator.

Rows: a fleet `e`; a worker as one balancer knows it `r`, those of one fleet one after the other. Production has one
fleet, the simulator one for each environment and balancer.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from balancer.kernel.estimators.caches import PLACES, WAYS
from balancer.kernel.estimators.columns import array
from balancer.kernel.estimators.prefixes import AGES, MOST_CHECKPOINTS, PREFIX_PLACES, PREFIX_WAYS
from balancer.kernel.settings import Settings
from policies.base import FloatArray
from policies.choices import SCRATCH
from policies.learned.loops import Weights, weights_of
from policies.learned.network import untrained

AnyArray = npt.NDArray[Any]

# Columns of `DecisionScratch.settings`; see `balancer.kernel.settings`.
(
    STALE_AFTER_S, REPORTS_REQUIRED, MAX_PENDING, SHEDDABLE_PRIORITY, SHEDDABLE_PENDING, SHED_LATE, MAX_FALLBACKS,
    LATENCY_DECAY_S, ERROR_DECAY_S, SERVICE_MEMORY, DEFAULT_SERVICE_S, CAPACITY, REFILL_PER_S, TARGET_PENDING,
    SLOW_START_S, ZONE_BOUND_S, KEY_MEMORY, SAMPLED, SETTING_COLUMNS,
) = range(19)  # fmt: skip


# What a decision finds beside the worker: of FULL, how many pending are too many, of LATE, the seconds that it takes at
# best; the probability with which the worker was picked; how many could have been; how many fallbacks there are.
REFUSED_AT, PROPENSITY, AMONG, NAMED, FOUND_COLUMNS = range(5)


def settings_row(settings: Settings) -> list[float]:
    """A row of `DecisionScratch.settings`."""
    limits, estimators, tokens = settings.limits, settings.estimators, settings.estimators.tokens
    values = {
        STALE_AFTER_S: settings.stale_after_s,
        REPORTS_REQUIRED: settings.reports_required,
        MAX_PENDING: limits.max_pending_per_worker,
        SHEDDABLE_PRIORITY: limits.sheddable_priority,
        SHEDDABLE_PENDING: limits.sheddable_max_pending_per_worker,
        SHED_LATE: limits.shed_late,
        MAX_FALLBACKS: settings.max_fallbacks,
        LATENCY_DECAY_S: estimators.latency_decay_s,
        ERROR_DECAY_S: estimators.error_decay_s,
        SERVICE_MEMORY: estimators.service_memory,
        DEFAULT_SERVICE_S: estimators.default_service_s,
        CAPACITY: tokens.capacity,
        REFILL_PER_S: tokens.refill_per_s,
        TARGET_PENDING: tokens.target_pending,
        SLOW_START_S: settings.slow_start_s,
        # 0: a hash places keys, so nobody is to know where they are warm.
        KEY_MEMORY: 0.0 if settings.sticky_keys else estimators.key_memory,
        ZONE_BOUND_S: settings.zones.bound_s if settings.zones.own else -1.0,
        SAMPLED: settings.sampled_workers,
    }
    return [float(values[column]) for column in range(SETTING_COLUMNS)]


class RequestFeatures(NamedTuple):
    """A request, as numbers."""

    model: int
    """Its column in the estimators."""
    rows: float
    mixed_key: int
    """`mix` of its key, or of its number where it has none; 64 bits."""
    keyed: float
    """1 where it has a key."""
    deadline_s: float
    priority: float
    number: int
    prompt_tokens: float
    """0: it has no prompt. What that begins with stands in `DecisionScratch.checkpoint`."""
    max_tokens: float
    """Most that the request allows its answer; 0: it sets no bound."""


class DecisionScratch(NamedTuple):
    """What lies before a decision."""

    settings: FloatArray = array("e settings")
    """`(e, SETTING_COLUMNS)`."""
    weight: FloatArray = array("e n", start=1)
    """`(e, n)`."""
    name_hash: AnyArray = array("e n", np.uint64)
    """`(e, n)`."""
    kind_hash: AnyArray = array("e n", np.uint64)
    """Hash of each worker's device kind, `(e, n)`; see `policies.hashing.kind_hash_of`."""
    model_hash: AnyArray = array("e m", np.uint64)
    """`(e, m)`, see `policies.hashing.model_hash_of`."""
    reported_s: FloatArray = array("r", start=-np.inf)
    """When each worker's last report was received, by `r`; minus infinity: none, or its stream broke."""
    since_s: FloatArray = array("r", start=-np.inf)
    """When each worker's first report was received, by `r`; minus infinity: none was yet."""
    tier: FloatArray = array("r")
    """How far each worker's zone is from the balancer, by `r`: 0 is near, see `balancer.scheduler.worker.tier_of`."""
    kind: FloatArray = array("r")
    """Number of each worker's kind of device, by `r`, see `balancer.scheduler.worker.kinds_of`."""
    mask: AnyArray = array("e n", np.bool_, False)
    """Who may be picked for the request that is being decided, `(e, n)`."""
    candidate: AnyArray = array("e n", np.bool_, False)
    """Who of them the policy chooses among, `(e, n)`."""
    columns: FloatArray = array("e columns n")
    """What the policy reads more than once, `(e, columns, n)`."""
    facts: FloatArray = array("e facts")
    """What the policy reads of the fleet as a whole, `(e, facts)`."""
    cost: FloatArray = array("e n")
    """`(e, n)`."""
    shares: FloatArray = array("e n")
    """The policy's answer, `(e, n)`."""
    pending: FloatArray = array("e n")
    """Room for a number of each worker, `(e, n)`: its `completion_s`, for zones; its pending, for fallbacks."""
    cached: FloatArray = array("e n")
    """Room for a number of each worker, `(e, n)`: its `cached`, where somebody asks for all of them."""
    work_behind: FloatArray = array("e n")
    """The same of its `work_behind_s`."""
    scratch: FloatArray = array("e scratch")
    """`(e, scratch)`."""
    checkpoint: AnyArray = array("e checkpoints", np.uint64)
    """Hashes of what the prompt that is decided about begins with, `(e, checkpoints)`, see `prefixes.matched`."""
    checkpoint_tokens: FloatArray = array("e checkpoints")
    """Of how many tokens each is; 0: there are no more."""
    matched: FloatArray = array("e n")
    """Tokens of it that each worker is taken to have, `(e, n)`; holds where the request has a prompt."""
    to_compute: FloatArray = array("e")
    """Of the request that was counted in last, the tokens of its prompt that the worker has to compute."""
    ahead: FloatArray = array("e")
    """Those, and what waits there before them."""
    beside: FloatArray = array("e")
    """Requests there, this one among them."""


MOST_COLUMNS, MOST_FACTS = 24, 4
"""That a policy may read."""
ROOM = (
    *("mask", "candidate", "columns", "facts", "cost", "shares", "pending", "cached", "work_behind", "scratch"),
    *("checkpoint", "checkpoint_tokens", "matched", "to_compute", "ahead", "beside"),
)
"""Those of the scratch's arrays in which a decision is worked out, and nothing outlasts it."""


def lengths_of(workers: int, models: int) -> dict[str, int]:
    """How long axes are, for one fleet as one balancer knows it."""
    axes = {"e": 1, "f": 1, "n": workers, "r": workers, "m": models, "places": PLACES, "ways": WAYS}
    return axes | {
        "settings": SETTING_COLUMNS,
        "columns": MOST_COLUMNS,
        "facts": MOST_FACTS,
        "scratch": SCRATCH * workers,
        "checkpoints": MOST_CHECKPOINTS,
        "prefix_places": PREFIX_PLACES,
        "prefix_ways": PREFIX_WAYS,
        "ages": AGES,
    }


NO_WEIGHTS = weights_of(untrained(hidden=1))
"""Stands for the network in other policies' options, so that all are of one type."""


class Options(NamedTuple):
    """What a policy's answer is given beside the fleet's state and the request."""

    values: FloatArray
    weights: Weights = NO_WEIGHTS
    """Of the learned policy."""
    scratch: FloatArray = NO_WEIGHTS.beta
    """Of the learned policy, for one decision after the other."""


class FleetState(Protocol):
    """All that the kernel's functions work on: the scratch and the estimators' states, as records of arrays."""

    @property
    def decision(self) -> DecisionScratch:
        """See `DecisionScratch`."""

    @property
    def queue(self) -> Any:
        """See `balancer.kernel.estimators.queue.Queue`."""

    @property
    def service(self) -> Any:
        """See `balancer.kernel.estimators.service.Service`."""

    @property
    def latency(self) -> Any:
        """See `balancer.kernel.estimators.latency.Latency`."""

    @property
    def tokens(self) -> Any:
        """See `balancer.kernel.estimators.tokens.Tokens`."""

    @property
    def caches(self) -> Any:
        """See `balancer.kernel.estimators.caches.Caches`."""

    @property
    def prefixes(self) -> Any:
        """See `balancer.kernel.estimators.prefixes.Prefixes`."""

    @property
    def prefill(self) -> Any:
        """Seconds to the first token, by the tokens of prompts to compute until then; see `generation`."""

    @property
    def decode(self) -> Any:
        """Seconds of a token, by the requests that are there; see `generation`."""

    @property
    def lengths(self) -> Any:
        """See `balancer.kernel.estimators.generation.Lengths`."""
