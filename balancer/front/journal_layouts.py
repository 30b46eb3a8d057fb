"""What Envoys tell of their decisions for the decision log: see `layouts.py`, and balancer/native/module/journal.h."""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

from balancer.core.bounds import MAX_FALLBACKS
from balancer.front.structs import ENDPOINT, Struct


class RecordKind(IntEnum):
    """Of a record in the journal."""

    RECORD_SKIP = 0
    """There is nothing more until the ring begins anew."""
    RECORD_DECISION = 1
    RECORD_REFUSAL = 2
    RECORD_OUTCOME = 3


class RecordFlag(IntFlag):
    """Of a record in the journal."""

    RECORD_KEYED = 1
    RECORD_SEQUENCE = 2
    RECORD_QUESTION = 4
    """About a model or server: no load."""
    RECORD_OK = 8
    RECORD_PUBLISHED = 16
    """A table decided."""


JOURNAL_RING_BYTES = 16 * 2**20
SEEN: dict[str, tuple[str, ...]] = {
    "queue": (
        *("in_flight", "reported_pending", "others", "others_work_s", "others_s"),
        *("own_work_s", "executing_s", "progress_s", "own_requests", "forming_rows", "balancers"),
    ),
    "service": ("fixed_s", "per_row_s", "max_batch_rows", "parallel"),
    "latency": ("latency_s", "latency_at_s", "errors", "errors_at_s"),
    "tokens": ("level", "rate_per_s", "at_s"),
    "caches": ("saved",),
    "desk": ("reported_s", "cached", "behind"),
}
"""What the columns of a view are made of, in the journal's order: records of the books and their arrays, of which those
with an axis of models are told of for the request's."""
_RECORD = Struct(
    "record",
    "What each record in the journal begins with. Records are multiples of 8 bytes; none goes over the ring's end.",
    (
        ("bytes", np.uint32, "of all of it"),
        ("kind", np.uint8, "enum record_kind"),
        ("flags", np.uint8, "enum record_flag"),
        ("decider", np.uint8, "enum decider"),
        ("why", np.uint8, "of a refusal: gRPC's status; of an outcome: enum void_kind"),
        ("number", np.uint64, "of the decision"),
        ("at_s", np.float64, ""),
    ),
)
_ASKED = Struct(
    "asked_record",
    "A decision or a refusal. What follows: model, version and tenant, then zeros up to a multiple of 8; of a decision "
    "then JOURNAL_SEEN arrays of `workers` doubles, its probabilities, and a byte for each that says who was eligible, "
    "with zeros likewise.",
    (
        ("record", _RECORD.dtype, ""),
        ("serial", np.uint64, "of the directory that has the rows"),
        ("key", np.uint64, ""),
        ("rows", np.float64, "of its inputs"),
        ("deadline_s", np.float64, ""),
        ("priority", np.float64, ""),
        ("propensity", np.float64, ""),
        ("row", np.int64, "of the worker; -1: shed"),
        ("fallbacks", (np.int64, MAX_FALLBACKS), "rows; -1: none"),
        ("workers", np.uint32, "of a refusal: 0"),
        ("model_bytes", np.uint32, ""),
        ("version_bytes", np.uint32, ""),
        ("tenant_bytes", np.uint32, ""),
    ),
)
_ENDED = Struct(
    "ended_record",
    "How the request of a decision ended.",
    (
        ("record", _RECORD.dtype, ""),
        ("latency_s", np.float64, "not a number: no measure"),
        ("endpoint", ENDPOINT, "that served it; empty: none"),
    ),
)
OF_JOURNAL = _RECORD, _ASKED, _ENDED
ASKED, ENDED = _ASKED.dtype, _ENDED.dtype
