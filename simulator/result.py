"""What a run tells: one record a request, and some sums."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from policies.base import FloatArray


class Status(IntEnum):
    OK = 0
    ERROR = 1
    """Answered with an error, lost in a crash, or of a sequence that its worker does not know."""
    UNAVAILABLE = 2
    """Rejected by Triton (queue full, timeout) or by a worker that is down, also at every fallback."""
    SHED = 3
    """Turned away by the balancer: limits or the policy (429)."""
    NO_WORKER = 4
    """No worker was eligible (503)."""
    UNFINISHED = 5
    """Left on a worker that is stalled for good."""
    CANCELLED = 6


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Arrays of shape `(e, k)`: environments (one for each seed) and requests, unless said otherwise."""

    arrival_s: FloatArray
    latency_s: FloatArray
    """Arrival to answer at the client, whatever the status; NaN where unfinished."""
    first_s: FloatArray
    """Arrival to the first response at the client, of streams that were answered well; else NaN."""
    prompt_tokens: FloatArray
    """Of requests to models that generate; else NaN."""
    cached_tokens: FloatArray
    """Those of them that the worker had when it began with the prompt; NaN: it never did."""
    matched_tokens: FloatArray
    """Those that the balancer took it to have; NaN: it was not asked."""
    status: npt.NDArray[np.int8]
    """`Status`."""
    worker: npt.NDArray[np.int16]
    """Who answered; -1: nobody."""
    picked: npt.NDArray[np.int16]
    """Whom the policy picked; -1: nobody."""
    attempts: npt.NDArray[np.int8]
    model: npt.NDArray[np.int16]
    rows: npt.NDArray[np.int32]
    deadline_s: FloatArray
    priority: npt.NDArray[np.int16]
    tenant: npt.NDArray[np.int16]
    pending_integral_s: FloatArray
    """Integral over time of the number in the system (arrived, not yet answered by a worker); `(e,)`."""
    end_s: FloatArray
    """When the last request ended; `(e,)`."""
    busy_s: FloatArray
    """Seconds in which each device executed something; `(e, n)`."""
    executions: npt.NDArray[np.int64]
    """Batches executed; `(e, n)`."""
    timeline_s: FloatArray
    """Times of the samples below; `(t,)`, empty unless a period was given."""
    timeline_pending: FloatArray
    """Requests queued or executing at each worker; `(e, t, n)`."""
    workers: tuple[str, ...]
    models: tuple[str, ...]
