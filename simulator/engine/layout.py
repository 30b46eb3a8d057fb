"""The arrays that the engine works on. Rows: an environment `e`; a worker `g = e * n + w`; a worker as one balancer
knows it `r = (e * balancers + b) * n + w`. Small numbers that are used together lie side by side in one array, under
the column numbers below, so that a request touches few cache lines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.core.kernel.state import Desk

FloatArray = npt.NDArray[np.float64]
AnyArray = npt.NDArray[Any]

# Kinds of events, in the order in which they happen at equal times; see README.md.
(
    TICK, FAULT, FAULT_END, HOST_DONE, DEVICE_DONE, REACH, TIMER, OUTCOME, SAMPLE, REPORT, SCALE, TIMELINE, ANSWER,
    ARRIVAL,
) = range(14)  # fmt: skip
KIND_BITS = 56
"""An event's payload is `kind << KIND_BITS | subject`."""
REPORT_BITS = 16
"""Of a report's number in the subject of its event."""

# Kinds of faults.
SLOW, STALL, CRASH, ERRORS, JOIN, LEAVE, SILENT = range(7)

# Columns of `Plan.env`.
(
    E_PERIOD, E_DELAY, E_JITTER, E_LOSS, E_TO_WORKER, E_TO_CLIENT, E_NET_JITTER, E_OUTCOME, E_RETRIES, E_COLD,
    E_COLD_FACTOR, E_SCALE_PERIOD, E_SCALE_UP, E_SCALE_DOWN, E_SCALE_LOAD, E_SCALE_LEAST, E_CACHE, E_SAVING,
    E_TIMELINE, E_CLIENTS, E_SAMPLES, E_FAULTS, E_FALLIBLE, E_FADE, E_EXACT, E_BALANCERS,
    ENV_COLUMNS,
) = range(27)  # fmt: skip

# Columns of `Plan.model`, by environment and model.
(
    M_MAX_ROWS, M_DELAY, M_LEVELS, M_DEFAULT_LEVEL, M_MAX_QUEUE, M_TIMEOUT, M_DELAY_LATE, M_NOISE, M_SIGMA,
    M_HALF_VARIANCE, M_PREFERRED, MODEL_COLUMNS,
) = range(12)  # fmt: skip
NO_NOISE, LOGNORMAL, EXPONENTIAL = range(3)

# Columns of `Plan.worker`.
W_SPEED, W_CONCURRENCY, W_INTERFERENCE, W_EXISTS, W_PRESENT, WORKER_COLUMNS = range(6)

# Columns of `State.real`, by worker.
AT, DEVICE_END, BUSY, SLOWNESS, ERROR_SHARE, NEXT_SAMPLE, REAL_COLUMNS = range(7)

# Columns of `State.whole`, by worker.
(
    ACTIVE, WAITING, NEXT_SLOT, UP, JOINED, READY, DRAINING, IS_SILENT, STALLED, STARTED, STARTED_UP, EPOCH,
    INCARNATION, REPORT_NUMBER, LOGGED, ORDER, SAMPLED, QUEUED, EXECUTING, WHOLE_COLUMNS,
) = range(20)  # fmt: skip

# Columns of `State.clock` and `State.counts`, by environment.
NOW, INTEGRAL, INTEGRAL_AT, CLOCK_COLUMNS = range(4)
(
    NEXT_ARRIVAL, NEXT_ANSWERED, IN_SYSTEM, REACH_HEAD, REACH_TAIL, OUTCOME_HEAD, OUTCOME_TAIL, DECIDING, ENDED,
    TIMELINE_ROW, HEARD, COUNT_COLUMNS,
) = range(12)  # fmt: skip

# States of a slot.
FREE, ON_HOST, WAITS, RUNS = range(4)


class Sizes(NamedTuple):
    """Lengths of axes."""

    workers: int
    models: int
    balancers: int
    requests: int
    slots: int
    levels: int
    log: int
    snapshots: int


class Plan(NamedTuple):
    """What does not change in a run."""

    env: FloatArray
    model: FloatArray
    preferred: AnyArray
    """`(e * m, 8)`, ascending, padded with 0."""
    worker: FloatArray
    table: AnyArray
    """Row of the service tables; `(e * n, m)`, -1 where the model is not loaded."""
    permitted: AnyArray
    """Whether the settings' model table permits it, `(e * n, m, 2)`: before the worker's first report, and after."""
    instances: AnyArray
    device_s: FloatArray
    """`(tables, most rows + 1)`."""
    host_s: FloatArray
    fault_kind: AnyArray
    """`(e, faults)`."""
    fault_worker: AnyArray
    fault_at_s: FloatArray
    fault_until_s: FloatArray
    fault_amount: FloatArray
    seed: AnyArray
    """`mix(seed)` as uint64, by environment."""
    router_seed: AnyArray
    """`mix(router's seed)`, `(e, balancers)`."""


class Demand(NamedTuple):
    """The arrivals, `(e, k)` each."""

    time_s: FloatArray
    model: AnyArray
    rows: AnyArray
    work: FloatArray
    key: AnyArray
    deadline_s: FloatArray
    priority: AnyArray
    balancer: AnyArray


class State(NamedTuple):
    """What the workers and the requests are at."""

    clock: FloatArray
    counts: AnyArray
    real: FloatArray
    whole: AnyArray
    slot_state: AnyArray
    """`(e * n, slots)`, as all of a slot."""
    slot_model: AnyArray
    slot_rows: AnyArray
    slot_head: AnyArray
    slot_order: AnyArray
    slot_start_s: FloatArray
    slot_ready_s: FloatArray
    """When the host phase ends."""
    slot_left_s: FloatArray
    queue_head: AnyArray
    """`(e * n, m, levels + 1)`: the last level is that of delayed requests."""
    queue_tail: AnyArray
    queue_count: AnyArray
    queued: AnyArray
    """`(e * n, m)`."""
    executing: AnyArray
    busy_instances: AnyArray
    coming_rows: FloatArray
    """Rows on the way to the worker, `(e * n, m)`, and their work."""
    coming_work: FloatArray
    timer_s: FloatArray
    cache: AnyArray
    """`(e * n, entries)`."""
    compute_s: FloatArray
    """Compute seconds of all requests, cumulative; `(e * n, m)`."""
    sample_s: FloatArray
    """`(e * n, samples)`: a ring of the last samples' times."""
    sample_compute_s: FloatArray
    """`(e * n, samples, m)`."""
    log_model: AnyArray
    """`(e * n, log)`: a ring of the executions that ended."""
    log_rows: AnyArray
    log_requests: AnyArray
    log_s: FloatArray
    snapshot: AnyArray
    """`(e * n, snapshots, 4)`: a ring of reports taken: log position, epoch, incarnation, number."""
    snapshot_pending: FloatArray
    """`(e * n, snapshots, m)`."""
    snapshot_executing: FloatArray
    next: AnyArray
    """Of a request in whatever queue it is, -1 at the end; `(e, k)` as all that follow."""
    heard: AnyArray
    """The requests whose outcomes balancers heard, in that order; as many as `counts` says under `HEARD`."""
    arrived_s: FloatArray
    sent_s: FloatArray
    queued_s: FloatArray
    resolved_s: FloatArray
    status: AnyArray
    server: AnyArray
    picked: AnyArray
    attempts: AnyArray
    fallback: AnyArray
    """`(e, k, fallbacks)`."""
    timeline: FloatArray
    """`(e, t, n)`."""


class Asked(NamedTuple):
    """The request that waits for a decision in each environment; `(e,)` each, as policies take them."""

    model: AnyArray
    balancer: AnyArray
    rows: FloatArray
    key: AnyArray
    deadline_s: FloatArray
    priority: FloatArray
    number: AnyArray
    uniform: FloatArray
    """The router's draw."""
    now_s: FloatArray


class Heap(NamedTuple):
    """Events to come."""

    at_s: FloatArray
    """`(e, events)`."""
    payload: AnyArray
    size: AnyArray
    """`(e,)`."""
    lasting: AnyArray
    """How many are not of a kind that comes again and again; `(e,)`."""


class Known(NamedTuple):
    """What balancers know beside the estimators' arrays."""

    number: AnyArray
    """Requests decided, `(e, balancers)`."""
    fresh_until_s: FloatArray
    """Until when `eligible` holds, `(e, balancers)`."""
    eligible: AnyArray
    """`((e * balancers + b) * m + model, n)`."""
    eligible_count: AnyArray
    added: AnyArray
    """By `r`, as all that follow."""
    draining: AnyArray
    ready: AnyArray
    report_number: AnyArray
    incarnation: AnyArray
    position: AnyArray
    """How much of the worker's log has been learned from."""
    executions: FloatArray
    """Cumulative by rows, `(r, m, most rows + 1)`: as of the last report taken, like `seconds`."""
    seconds: FloatArray
    executions_seen: FloatArray
    seconds_seen: FloatArray
    executions_all: FloatArray
    """`(r, m)`, as those that follow."""
    executed_rows: FloatArray
    answered: FloatArray
    """Requests of those executions."""
    lines: FloatArray
    """Of the report that is being taken in, as `balancer.core.kernel.reports` has them; `(e, m, LINE_COLUMNS)`."""
    batches: FloatArray
    """`(e, m * most rows, BATCH_COLUMNS)`."""


class Sim(NamedTuple):
    """All of it; the last five are the core's, `balancer.core.kernel.state.Books`."""

    sizes: Sizes
    plan: Plan
    demand: Demand
    state: State
    asked: Asked
    heap: Heap
    known: Known
    desk: Desk
    queue: Any
    service: Any
    latency: Any
    tokens: Any
