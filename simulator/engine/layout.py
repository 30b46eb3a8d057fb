"""The arrays that the engine works on. Rows: an environment `e`; a worker `g = e * n + w`; a worker as one balancer
knows it `r = (e * balancers + b) * n + w`. Small numbers that are used together lie side by side in one array, under
the column numbers below, so that a request touches few cache lines.

Arrays are declared by their axes (`allocate._lengths` says how long each is; the first tells what belongs to one
environment), their type, and their value at the start of a run.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.kernel.estimators.caches import Caches
from balancer.kernel.estimators.columns import array
from balancer.kernel.estimators.generation import Lengths
from balancer.kernel.estimators.latency import Latency
from balancer.kernel.estimators.prefixes import Prefixes
from balancer.kernel.estimators.queue import Queue
from balancer.kernel.estimators.service import Service
from balancer.kernel.estimators.tokens import Tokens
from balancer.kernel.state import DecisionScratch
from balancer.scheduler.holding.state import Held
from policies.base import FloatArray
from simulator.result import Status

AnyArray = npt.NDArray[Any]

# Kinds of events, in the order in which they happen at equal times.
(
    TICK, FAULT, FAULT_END, HOST_DONE, DEVICE_DONE, REACH, TIMER, FIRST_TOKEN, OUTCOME, GIVE_UP, LEFT, HELD_LONG,
    PEER, SAMPLE, REPORT, SCALE, TIMELINE, ANSWER, ARRIVAL,
) = range(19)  # fmt: skip
KIND_BITS = 56
"""An event's payload is `kind << KIND_BITS | subject`."""
REPORT_BITS = 16
"""Of a report's number in the subject of its event."""

# Kinds of faults, in the order of `FaultKind`.
SLOW, STALL, CRASH, ERRORS, JOIN, LEAVE, SILENT, LOAD, UNLOAD = range(9)

# Columns of `EnginePlan.env`.
(
    E_PERIOD, E_DELAY, E_JITTER, E_LOSS, E_TO_WORKER, E_TO_CLIENT, E_NET_JITTER, E_OUTCOME, E_RETRIES, E_COLD,
    E_COLD_FACTOR, E_SCALE_PERIOD, E_SCALE_UP, E_SCALE_DOWN, E_SCALE_LOAD, E_SCALE_LEAST, E_CACHE, E_SAVING,
    E_TIMELINE, E_CLIENTS, E_SAMPLES, E_FAULTS, E_FALLIBLE, E_FADE, E_EXACT, E_BALANCERS,
    E_UNEQUAL_WAYS, E_STICKY, E_PLACER, E_HOLDS, E_HOLDER, E_DECIDER, E_EXTRAS, E_SEQUENCES_OUTSIDE, E_BLOCK_TOKENS,
    E_PEERS, ENV_COLUMNS,
) = range(37)  # fmt: skip

# Columns of `EnginePlan.model`, by environment and model.
(
    M_MAX_ROWS, M_DELAY, M_LEVELS, M_DEFAULT_LEVEL, M_MAX_QUEUE, M_TIMEOUT, M_DELAY_LATE, M_NOISE, M_SIGMA,
    M_HALF_VARIANCE, M_PREFERRED, M_STEP_TOKENS, M_MAX_SEQUENCES, MODEL_COLUMNS,
) = range(14)  # fmt: skip
NO_NOISE, LOGNORMAL, EXPONENTIAL = range(3)

# Columns of `EnginePlan.worker`.
W_SPEED, W_CONCURRENCY, W_INTERFERENCE, W_EXISTS, W_PRESENT, WORKER_COLUMNS = range(6)

# Columns of `EnginePlan.generating`, by worker and model.
G_MEMORY, G_CONTEXT, G_ATTENTION, GENERATING_COLUMNS = range(4)

# Columns of `EngineState.running`: the running sequences, first and last; the cached blocks that nobody uses, the one
# to go first and the last, all four -1 where there is none; how many such blocks; tokens held; sequences that decode,
# and the tokens before them.
(FIRST, LAST, OLDEST, NEWEST, UNUSED, HELD, DECODING, CONTEXT, RUNNING_COLUMNS) = range(9)
ABSENT = -1
"""Of a block's users: it is not cached."""

# Columns of `EngineState.real`, by worker.
AT, DEVICE_END, BUSY, SLOWNESS, ERROR_SHARE, NEXT_SAMPLE, REAL_COLUMNS = range(7)

# Columns of `EngineState.whole`, by worker.
(
    ACTIVE, WAITING, NEXT_SLOT, UP, JOINED, READY, DRAINING, IS_SILENT, STALLED, STARTED, STARTED_UP, EPOCH,
    INCARNATION, REPORT_NUMBER, LOGGED, PROMPTS, ORDER, SAMPLED, QUEUED, EXECUTING, WHOLE_COLUMNS,
) = range(21)  # fmt: skip

# Columns of `EngineState.clock` and `EngineState.counts`, by environment.
NOW, INTEGRAL, INTEGRAL_AT, CLOCK_COLUMNS = range(4)
(
    NEXT_ARRIVAL, NEXT_ANSWERED, IN_SYSTEM, REACH_HEAD, REACH_TAIL, OUTCOME_HEAD, OUTCOME_TAIL, DECIDING, ENDED,
    TIMELINE_ROW, RECEIVED, LEAVING, COUNT_COLUMNS,
) = range(13)  # fmt: skip

# Stages of a request; held ones, too, are not placed.
NOT_PLACED, ON_THE_WAY, IN_QUEUE, EXECUTES = range(4)

# What becomes of a model at a worker.
NEVER_LOADED, UNLOADED, LOADED = range(3)

# Statuses that results show as ERROR: lost in a crash, which leaves no latency; a request of a sequence that its worker
# does not know, which says nothing of the worker.
LOST, REFUSED = 100, 101

# States of a slot.
FREE, ON_HOST, WAITS, RUNS = range(4)


class EngineSizes(NamedTuple):
    workers: int
    models: int
    balancers: int
    requests: int
    slots: int
    levels: int
    log: int
    snapshots: int


class EnginePlan(NamedTuple):
    env: FloatArray = array("e env")
    model: FloatArray = array("em model")
    preferred: AnyArray = array("em preferred", int)
    worker: FloatArray = array("g worker", start=1)
    table: AnyArray = array("g m", int, -1)
    """Row of the service tables; `(e * n, m)`, -1 where the model is never loaded."""
    loaded: AnyArray = array("g m", np.int8)
    permitted: AnyArray = array("g m two", bool, True)
    """Whether the settings' model table permits it, `(e * n, m, 2)`: before the worker's first report, and after."""
    instances: AnyArray = array("g m", int)
    across_s: FloatArray = array("r")
    """What the way from a balancer to a worker takes longer than within a zone."""
    generating: FloatArray = array("g m generating")
    device_s: FloatArray = array("tables sizes")
    host_s: FloatArray = array("tables sizes")
    fault_kind: AnyArray = array("e faults", int)
    fault_worker: AnyArray = array("e faults", int)
    fault_at_s: FloatArray = array("e faults")
    fault_until_s: FloatArray = array("e faults")
    fault_amount: FloatArray = array("e faults")
    fault_model: AnyArray = array("e faults", int)
    seed: AnyArray = array("e", np.uint64)
    """`mix(seed)` as uint64, by environment."""
    router_seed: AnyArray = array("e b", np.uint64)
    """`mix(router's seed)`, `(e, balancers)`."""


class EngineDemand(NamedTuple):
    """The arrivals, `(e, k)` each; extras, which are seldom looked at, lie apart."""

    time_s: FloatArray = array("e k")
    model: AnyArray = array("e k", np.int16)
    rows: AnyArray = array("e k", np.int32, 1)
    work: FloatArray = array("e k", start=1)
    key: AnyArray = array("e k", np.uint64)
    deadline_s: FloatArray = array("e k", start=np.inf)
    priority: AnyArray = array("e k", np.int16)
    balancer: AnyArray = array("e k", np.int16)
    tenant: AnyArray = array("e k", np.int16)
    sequence: AnyArray = array("e x", np.int32, -1)
    starts: AnyArray = array("e x", np.bool_)
    responses: AnyArray = array("e x", np.int32)
    first_share: FloatArray = array("e x", start=1)
    patience_s: FloatArray = array("e x", start=np.inf)
    tokens: AnyArray = array("e prompts", np.int32, 1)
    output: AnyArray = array("e prompts", np.int32, 1)
    first_block: AnyArray = array("e prompts", int)
    """Where a request's blocks begin in `block`, and how many they are."""
    blocks: AnyArray = array("e prompts", np.int32)
    block: AnyArray = array("e block", int)
    """Numbered from 0 within an environment, those of each model apart."""


class EngineState(NamedTuple):
    clock: FloatArray = array("e clock")
    counts: AnyArray = array("e count", int)
    real: FloatArray = array("g real")
    whole: AnyArray = array("g whole", int)
    slot_state: AnyArray = array("g slots", np.int8, FREE)
    slot_model: AnyArray = array("g slots", int)
    slot_rows: AnyArray = array("g slots", int)
    slot_head: AnyArray = array("g slots", int)
    slot_order: AnyArray = array("g slots", int)
    slot_start_s: FloatArray = array("g slots")
    slot_ready_s: FloatArray = array("g slots")
    slot_left_s: FloatArray = array("g slots")
    slot_began_s: FloatArray = array("g slots")
    queue_head: AnyArray = array("g m levels", int)
    """`(e * n, m, levels + 1)`: the last level is that of delayed requests."""
    queue_tail: AnyArray = array("g m levels", int)
    queue_count: AnyArray = array("g m levels", int)
    queued: AnyArray = array("g m", int)
    executing: AnyArray = array("g m", int)
    busy_instances: AnyArray = array("g m", int)
    coming_rows: FloatArray = array("g m")
    """Rows on the way to the worker, `(e * n, m)`, and their work."""
    coming_work: FloatArray = array("g m")
    timer_s: FloatArray = array("g m", start=np.inf)
    loaded: AnyArray = array("g m", np.int8)
    model_epoch: AnyArray = array("g m", int)
    """How often the worker lost the model's sequences."""
    cache: AnyArray = array("g entries", np.uint64)
    compute_s: FloatArray = array("g m")
    """Compute seconds of all requests, cumulative; `(e * n, m)`."""
    sample_s: FloatArray = array("g samples")
    """`(e * n, samples)`: a ring of the last samples' times."""
    sample_compute_s: FloatArray = array("g samples m")
    log_model: AnyArray = array("g log", np.int16)
    """`(e * n, log)`: a ring of the executions that ended."""
    log_rows: AnyArray = array("g log", np.int32)
    log_requests: AnyArray = array("g log", np.int32)
    log_s: FloatArray = array("g log")
    log_prompt: AnyArray = array("g log", np.int32)
    """`(e * n, log)`: a ring of the requests with prompts that were sent there, with several balancers."""
    snapshot: AnyArray = array("g snapshots five", int)
    """`(e * n, snapshots, 5)`: a ring of reports taken: log position, epoch, incarnation, number, position in
    `log_prompt`."""
    snapshot_pending: FloatArray = array("g snapshots m")
    snapshot_in_flight: FloatArray = array("g snapshots b m")
    """What each balancer had in flight there, `(e * n, snapshots, balancers, m)`."""
    snapshot_waiting: FloatArray = array("g snapshots b")
    """Tokens of prompts of each balancer that wait there."""
    snapshot_executing: FloatArray = array("g snapshots m")
    snapshot_held: FloatArray = array("g snapshots m")
    """Tokens that the sequences of a model hold."""
    snapshot_loaded: AnyArray = array("g snapshots m", np.int8)
    next: AnyArray = array("e k", np.int32, -1)
    """Of a request in whatever queue it is, -1 at the end; `(e, k)` as all that follow."""
    received: AnyArray = array("e k", np.int32, -1)
    """The requests whose outcomes balancers received, in that order; as many as `counts` says under `RECEIVED`."""
    arrived_s: FloatArray = array("e k")
    sent_s: FloatArray = array("e k")
    queued_s: FloatArray = array("e k")
    resolved_s: FloatArray = array("e k", start=np.nan)
    status: AnyArray = array("e k", np.int8, Status.UNFINISHED)
    server: AnyArray = array("e k", np.int16, -1)
    picked: AnyArray = array("e k", np.int16, -1)
    attempts: AnyArray = array("e k", np.int8)
    stage: AnyArray = array("e k", np.int8, NOT_PLACED)
    fallback: AnyArray = array("e x fallbacks", np.int16, -1)
    """`(e, k, fallbacks)`; by itself: as a field it would be of another type where a fleet has no retries, or there is
    one request, and all would be compiled once more."""
    running: AnyArray = array("g m running", int)
    """Of models that generate, see `generating.py`; so are all that follow with `prompts` or `names`."""
    users: AnyArray = array("g names", np.int32, ABSENT)
    """Sequences that use a block; 0: it is cached and nobody does."""
    older: AnyArray = array("g names", np.int32)
    """Among the cached blocks that nobody uses: the one that goes before it, and after it."""
    newer: AnyArray = array("g names", np.int32)
    todo: AnyArray = array("e prompts", np.int32)
    """Tokens whose keys and values are to be computed before the next is generated."""
    context: AnyArray = array("e prompts", np.int32)
    """Tokens whose keys and values are there."""
    generated: AnyArray = array("e prompts", np.int32)
    chunk: AnyArray = array("e prompts", np.int32)
    """Tokens in the step under way."""
    shared: AnyArray = array("e prompts", np.int32)
    """Blocks that it uses together with others."""
    own: AnyArray = array("e prompts", np.int32)
    """Tokens held for it alone."""
    admitted_s: FloatArray = array("e prompts")
    to_compute: FloatArray = array("e prompts")
    """Tokens of its prompt that its balancer counts as waiting at the worker; 0: none any more."""
    ahead: FloatArray = array("e prompts")
    """Of `DecisionScratch` at its pick, as `beside`."""
    beside: FloatArray = array("e prompts")
    decided_s: FloatArray = array("e prompts")
    """When its worker was picked."""
    matched: FloatArray = array("e prompts", start=np.nan)
    """Tokens of its prompt that its balancer did not take to be computed, and those that the worker had when it was
    admitted there first."""
    cached: FloatArray = array("e prompts", start=np.nan)
    heard_first_s: FloatArray = array("e prompts", start=np.nan)
    """When its balancer heard of the first token."""
    timeline: FloatArray = array("e t n")
    first_s: FloatArray = array("e x", start=np.nan)
    """When the first response of a stream was sent; `(e, k)`."""
    sequence_worker: AnyArray = array("e x", np.int16, -1)
    """Which worker knows a sequence, and as of which `model_epoch`; `(e, k)`, by sequence."""
    sequence_epoch: AnyArray = array("e x", int)


class PendingRequests(NamedTuple):
    """The request that waits for a decision in each environment; `(e,)` each, as policies take them."""

    model: AnyArray = array("e", int)
    balancer: AnyArray = array("e", int)
    rows: FloatArray = array("e", start=1)
    key: AnyArray = array("e", np.uint64)
    deadline_s: FloatArray = array("e", start=np.inf)
    priority: FloatArray = array("e")
    prompt_tokens: FloatArray = array("e")
    number: AnyArray = array("e", np.uint64)
    uniform: FloatArray = array("e")
    now_s: FloatArray = array("e")
    sequence: AnyArray = array("e", np.bool_)
    how: AnyArray = array("e", int)
    """It is decided, see `balancer.kernel.deciding`; `found` is what a decision writes beside."""
    found: FloatArray = array("e found")


class Heap(NamedTuple):
    at_s: FloatArray = array("e heap")
    payload: AnyArray = array("e heap", int)
    size: AnyArray = array("e", int)
    lasting: AnyArray = array("e", int)
    """How many are not of a kind that comes again and again; `(e,)`."""


class BalancerKnowledge(NamedTuple):
    number: AnyArray = array("e b", int)
    """Requests decided, `(e, balancers)`."""
    fresh_until_s: FloatArray = array("e b", start=-np.inf)
    """Until when `eligible` holds, `(e, balancers)`."""
    eligible: AnyArray = array("ebm n", np.bool_, False)
    eligible_count: AnyArray = array("ebm", int)
    added: AnyArray = array("r", np.bool_, False)
    draining: AnyArray = array("r", np.bool_, False)
    ready: AnyArray = array("r", np.bool_, False)
    report_number: AnyArray = array("r", int, -1)
    incarnation: AnyArray = array("r", int, -1)
    position: AnyArray = array("r", int)
    """How much of the worker's log has been learned from."""
    prompts: AnyArray = array("r", int)
    """How much of the worker's `log_prompt` was heard of."""
    executions: FloatArray = array("r m rows")
    """Cumulative by rows, `(r, m, most rows + 1)`: as of the last report taken, like `seconds`."""
    seconds: FloatArray = array("r m rows")
    executions_seen: FloatArray = array("r m rows")
    seconds_seen: FloatArray = array("r m rows")
    executions_all: FloatArray = array("r m")
    executed_rows: FloatArray = array("r m")
    answered: FloatArray = array("r m")
    loaded: AnyArray = array("r m", np.int8)
    lines: FloatArray = array("e m line")
    """Of the report that is being taken in, as `balancer.kernel.reports` has them; `(e, m, LINE_COLUMNS)`."""
    batches: FloatArray = array("e executed batch")


class Sim(NamedTuple):
    """All of it; `held` and what follows are the core's: those who wait, and `balancer.kernel.state.FleetState`."""

    sizes: EngineSizes
    plan: EnginePlan
    demand: EngineDemand
    state: EngineState
    pending: PendingRequests
    heap: Heap
    known: BalancerKnowledge
    held: Held
    decision: DecisionScratch
    queue: Queue
    service: Service
    latency: Latency
    tokens: Tokens
    caches: Caches
    prefixes: Prefixes
    prefill: Service
    decode: Service
    lengths: Lengths
