"""What the balancer shares with Envoy's module, declared once: `balancer.native.header` makes `module/shared.h` of it.

NumPy's types are aligned as C aligns them, and the header has the compiler check sizes and places.
"""

from dataclasses import fields
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple, get_args

import numpy as np

from balancer.bounds import MAX_FALLBACKS, MAX_TEXT_BYTES
from balancer.discovery.workers import PortName
from balancer.extproc.inference_bytes import MAX_VERSION_DIGITS
from balancer.extproc.kserve import HeaderNames
from balancer.extproc.names import MOST_FORWARDED
from balancer.extproc.responses import By
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from balancer.native.enums import Decider, DrawFlags, Flag, GuardEvent, RecordFlag, RecordKind, Source
from balancer.scheduler.events import Void

SLOTS, OUTCOMES, LINES, SEATS = 65_536, 16_384, 1024, 64
"""Requests in flight, outcomes and lines that wait to be read, and Envoys, at most."""
PROMPTS = 4096
"""Of which other balancers are to hear, at most."""
RINGS = ("outcomes", "canary_events", "lines", "prompts")
CANARY_EVENTS, OWED = 16_384, 4096
"""Decisions and ends that guard and rollout are to learn of, and numbers left to the balancer, at most."""
ENDPOINT_BYTES = 64
"""Of an `address:port` with the zero that ends it."""
ENDPOINT = f"S{ENDPOINT_BYTES}"
PORTS: tuple[PortName, ...] = get_args(PortName)
SIDES = 2
MODEL_BYTES = 64
"""Of a model's name, for guard and rollout; what is longer is cut."""
MOST_NAMED = 1 + MAX_FALLBACKS
VERSION_BYTES = MAX_VERSION_DIGITS + 1
"""Of a version that is written into requests, with a zero at its end."""
VOIDS: tuple[Void, ...] = get_args(Void)
ENDERS: tuple[By, ...] = get_args(By)
NAMED_HEADERS = tuple(field.name for field in fields(HeaderNames))
UNKNOWN_MODEL = -1
DIRECTORY_MAGIC = int.from_bytes(b"irectory", "little")
NO_ENTRY = -1


COUNTS = {
    "picked": "a worker was picked",
    "least_locked": "left to Envoy, since the lock was not to be had",
    "least_stale": "left to Envoy, since the balancer gave no sign of life",
    "left_to_balancer": "left to the balancer, which decides",
    "refusals": "refused",
    "slots_full": "left to Envoy, since too many are in flight",
    "outcomes_lost": "ended and not reported, since too many outcomes wait to be read",
    "canary_events_lost": "reported to no guard or rollout, since too many wait to be read",
    "lines_lost": "without the line in the log that it was to have, since too many wait to be read",
    "prompts_lost": "of which other balancers do not hear, since too many wait to be read",
}
"""What the module counts of requests, and what that says."""

JOURNAL_RING_BYTES = 16 * 2**20
SEEN: dict[str, tuple[str, ...]] = {
    "queue": (
        *("in_flight", "reported_pending", "peer_in_flight", "peer_work_s", "peer_counted_s"),
        *("known_work_s", "executing_s", "progress_s", "spread", "known_requests", "forming_rows", "balancers"),
    ),
    "service": ("fixed_s", "per_row_s", "max_batch_rows", "parallel"),
    "latency": ("latency_s", "latency_at_s", "errors", "errors_at_s"),
    "tokens": ("level", "rate_per_s", "at_s"),
    "caches": ("saved",),
    "prefixes": ("waiting_tokens", "peer_waiting_tokens", "taken_in", "held_tokens", "memory_tokens"),
    "prefill": ("fixed_s", "per_row_s"),
    "decode": ("fixed_s", "per_row_s"),
    "lengths": ("output_tokens",),
    "decision": ("reported_s", "cached", "work_behind", "matched"),
}
"""What the columns of a view are made of, in the journal's order: records of the fleet's state and their arrays, of
of which those with an axis of models are written for the request's."""


class Struct(NamedTuple):
    name: str
    says: str
    fields: tuple[tuple[str, Any, str], ...]
    """Name, type as NumPy names it, and what it says where the name does not."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype([(name, kind) for name, kind, _ in self.fields], align=True)


_SLOT = Struct(
    "slot",
    "A request in flight that was counted in.",
    (
        ("number", np.uint64, "of the decision"),
        ("ticket", np.uint64, "of the Envoy that has it; 0: the slot is free"),
        ("row", np.int64, "of the worker, moved by the balancer when rows move; -1: it is gone"),
        ("column", np.int64, "of the model"),
        ("rows", np.float64, ""),
        ("at_s", np.float64, ""),
        ("to_compute", np.float64, "tokens of its prompt that count as waiting"),
        ("ahead", np.float64, "as the fleet's state had it then, as the next"),
        ("beside", np.float64, ""),
        ("first_token_s", np.float64, "when that came; 0: it did not, or is of no interest"),
        ("next", np.uint32, "free slot"),
        ("chosen", np.uint16, "1: the policy chose among several, so that no client did"),
        ("waits", np.uint16, "1: it waits for its client, and may lose its place for that"),
    ),
)
_OUTCOME = Struct(
    "outcome",
    "How a request ended, for the balancer's metrics and logs: the estimators have learned of it.",
    (
        ("number", np.uint64, "of the decision"),
        ("bytes_in", np.uint64, "body of the request"),
        ("bytes_out", np.uint64, "body of the response"),
        ("at_s", np.float64, "when it ended"),
        ("pick_s", np.float64, "from its headers to the decision; this and the next ones: not a number: none"),
        ("decision_s", np.float64, "of these, to understand it and to decide"),
        ("first_byte_s", np.float64, "from the decision, or the end of its body if later, to the response's headers"),
        ("latency_s", np.float64, "and to the end of the response"),
        ("first_token_s", np.float64, "from the decision to the first token of a stream"),
        ("answering_s", np.float64, "and from there to the end of the response"),
        ("prompt_tokens", np.uint32, "that the response tells of; 0: none, as the next ones"),
        ("cached_tokens", np.uint32, "of these, that the worker had"),
        ("output_tokens", np.uint32, "or as many as are estimated"),
        ("prompt", np.uint32, "1: the request had one"),
        ("propensity", np.float64, ""),
        ("key", np.uint64, "where it was drawn by that"),
        ("directory", np.uint64, "serial of the one that it was decided by; from here on alike for many"),
        ("column", np.int32, "of the model; 0: it is about none, UNKNOWN_MODEL: the fleet has not that one"),
        ("split", np.uint32, "that gave it a version, from 1, in the order of the directory; 0: none"),
        ("http_status", np.uint16, "0: none"),
        ("grpc_status", np.int16, "-1: none"),
        ("attempts", np.uint16, "1 and retries; 0: no worker was tried"),
        ("source", np.uint8, "enum decided_by"),
        ("decider", np.uint8, "enum decider"),
        ("kind", np.uint8, "enum balancer_kind"),
        ("port", np.uint8, "enum balancer_port"),
        ("ok", np.uint8, ""),
        ("void_kind", np.uint8, "enum void_kind"),
        ("aborted", np.uint8, "enum aborted"),
        ("refusal", np.uint8, "gRPC's status of it"),
        ("matched", np.uint8, "1: the pick still counted as in flight"),
        ("draw", np.uint8, "enum drawn; of a split"),
        ("endpoint", ENDPOINT, "that was tried last; empty: none. Of a refusal: the field out of bounds"),
    ),
)
_LINE = Struct(
    "line",
    "A decision, for a log that people read. Texts end with a zero.",
    (
        ("number", np.uint64, ""),
        ("directory", np.uint64, "serial of the one that it was made by"),
        ("propensity", np.float64, ""),
        ("decider", np.uint8, "enum decider"),
        ("refusal", np.uint8, "gRPC's status; 0: a worker was picked"),
        ("model", f"S{MAX_TEXT_BYTES + 1}", ""),
        ("request_id", f"S{MAX_TEXT_BYTES + 1}", "the header's"),
        ("id", f"S{MAX_TEXT_BYTES + 1}", "the message's"),
        ("named", f"S{MOST_NAMED * ENDPOINT_BYTES}", "endpoints, best first, separated by commas"),
    ),
)
_SENT_PROMPT = Struct(
    "sent_prompt",
    "A prompt of which other balancers are to hear.",
    (
        ("row", np.int64, "of the worker"),
        ("column", np.int64, "of the model"),
        ("tokens", np.float64, ""),
        ("count", np.uint64, "of what follows, alike"),
        ("hashes", (np.uint64, MOST_CHECKPOINTS), "of what it begins with"),
        ("lengths", (np.float64, MOST_CHECKPOINTS), "in tokens"),
    ),
)
_PIECE = Struct("piece", "A text among the strings of a directory.", (("at", np.uint32, ""), ("length", np.uint32, "")))
_CANDIDATE = Struct(
    "candidate",
    "A policy that may decide.",
    (
        ("name", _PIECE.dtype, ""),
        ("options", _PIECE.dtype, "name of a file; empty: it decides nothing here"),
        ("needs_key", np.uint64, ""),
    ),
)
_SIDE = Struct(
    "side",
    "One of the two who may decide.",
    (
        ("decider", np.uint64, ""),
        ("looks_from_s", np.float64, "from then on a guard is to look at a decision"),
        ("slow_s", np.float64, "decisions that take longer are reported; infinite: nobody watches them"),
    ),
)
_SELECTOR = Struct(
    "selector",
    "Who decides, as it stands: see balancer/scheduler/canary/selector.py.",
    (
        ("on", np.uint64, "0: the policy in force, always"),
        ("draws", np.uint64, ""),
        ("shadow_draws", np.uint64, ""),
        ("share", np.float64, "of the numbers, of the second side"),
        ("shadow_share", np.float64, ""),
        ("until_s", np.float64, "from then on who decides may be another"),
        ("compared_from_s", np.float64, "from then on guard or rollout compare decisions"),
        ("sides", (_SIDE.dtype, SIDES), ""),
    ),
)
_CANARY_EVENT = Struct(
    "canary_event",
    "What guard and rollout learn of a request.",
    (
        ("number", np.uint64, "of the decision"),
        ("watched", np.uint64, "decisions of its side so far that a guard counts"),
        ("at_s", np.float64, ""),
        ("seconds", np.float64, "that the decision took"),
        ("value_s", np.float64, "deadline; of what ended, its latency, not a number: none"),
        ("rows", np.float64, ""),
        ("priority", np.float64, ""),
        ("row", np.int32, "of the worker"),
        ("what", np.uint8, "enum canary_event_kind"),
        ("side", np.uint8, ""),
        ("ok", np.uint8, ""),
        ("look", np.uint8, "1: a guard is to look at it"),
        ("model", f"S{MODEL_BYTES}", "or its beginning"),
    ),
)
_HEAD = Struct(
    "directory_head",
    "What a directory begins with; then come endpoints, entries, masks and strings.",
    (
        ("magic", np.uint64, ""),
        ("bytes", np.uint64, "of all of it"),
        ("stamp", "S16", "the kernel's"),
        ("serial", np.uint64, "its file's name has it too"),
        ("generation", np.uint64, "of the fleet's state"),
        ("workers", np.uint64, ""),
        ("entries", np.uint64, ""),
        ("masks", np.uint64, ""),
        ("strings", np.uint64, "bytes"),
        ("flags", np.uint64, "enum flag"),
        ("any_model", np.int64, "entry for models that are not listed; NO_ENTRY: they are unknown"),
        ("no_model", np.int64, "entry for calls that concern a server"),
        ("deciders", (_CANDIDATE.dtype, len(Decider)), ""),
        ("headers", (_PIECE.dtype, len(NAMED_HEADERS)), ""),
    ),
)
_ENDPOINTS = Struct(
    "endpoints", "Of a worker; each ends with a zero.", (("of", (ENDPOINT, len(PORTS)), "by enum balancer_port"),)
)
_ENTRY = Struct(
    "entry",
    "One version of a model, or any version.",
    (
        ("hash", np.uint64, "of model and version; entries are sorted by it"),
        ("model", _PIECE.dtype, ""),
        ("version", _PIECE.dtype, ""),
        ("quoted", _PIECE.dtype, "the model as Python quotes it"),
        ("column", np.int64, ""),
        ("servable", np.uint32, "mask, as the next"),
        ("members", np.uint32, ""),
        ("loaded", np.uint64, "1: some worker has a version of the model"),
        ("limited", np.uint64, "1: the model table says who may serve it"),
        ("split", np.uint64, "its number among the models that two versions share, from 1; 0: none"),
        ("share", np.float64, "of the requests without a version that get the new one"),
        ("draws", np.uint64, "by which they do"),
        ("tokens_a_byte", np.float64, "of bodies with prompts"),
        ("old", _PIECE.dtype, "version; without a split, that requests which name none get; empty: none"),
        ("new", _PIECE.dtype, "version"),
    ),
)
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
_REQUEST_RECORD = Struct(
    "request_record",
    "A decision or a refusal. What follows: model, version and tenant, then zeros up to a multiple of 8; hashes of "
    "what its prompt begins with, then as many lengths in tokens; of a decision then JOURNAL_SEEN arrays of `workers` "
    "doubles, its probabilities, and a byte for each that says who was eligible, with zeros likewise.",
    (
        ("record", _RECORD.dtype, ""),
        ("serial", np.uint64, "of the directory that has the rows"),
        ("key", np.uint64, ""),
        ("rows", np.float64, "of its inputs"),
        ("deadline_s", np.float64, ""),
        ("priority", np.float64, ""),
        ("prompt_tokens", np.float64, "0: it has no prompt"),
        ("max_tokens", np.float64, "most that the request allows its answer; 0: it sets no bound"),
        ("propensity", np.float64, ""),
        ("row", np.int64, "of the worker; -1: shed"),
        ("fallbacks", (np.int64, MAX_FALLBACKS), "rows; -1: none"),
        ("workers", np.uint32, "of a refusal: 0"),
        ("model_bytes", np.uint32, ""),
        ("version_bytes", np.uint32, ""),
        ("tenant_bytes", np.uint32, ""),
        ("beginnings", np.uint32, "of its prompt that have a hash"),
    ),
)
_ENDED_RECORD = Struct(
    "ended_record",
    "How the request of a decision ended.",
    (
        ("record", _RECORD.dtype, ""),
        ("latency_s", np.float64, "not a number: no measure"),
        ("first_token_s", np.float64, "when that came; not a number: it did not"),
        ("said_s", np.float64, "when the last one did"),
        ("output_tokens", np.float64, "0: not known, as the next"),
        ("cached_tokens", np.float64, "of its prompt"),
        ("endpoint", ENDPOINT, "that served it; empty: none"),
    ),
)
STRUCTS = (
    *(
        _SLOT,
        _OUTCOME,
        _LINE,
        _SENT_PROMPT,
        _SIDE,
        _SELECTOR,
        _CANARY_EVENT,
        _PIECE,
        _CANDIDATE,
        _HEAD,
        _ENDPOINTS,
        _ENTRY,
    ),
    *(_RECORD, _REQUEST_RECORD, _ENDED_RECORD),
)
SLOT, OUTCOME, LINE, HEAD, ENTRY = (each.dtype for each in (_SLOT, _OUTCOME, _LINE, _HEAD, _ENTRY))
SELECTOR, CANARY_EVENT, SENT_PROMPT = _SELECTOR.dtype, _CANARY_EVENT.dtype, _SENT_PROMPT.dtype
REQUEST_RECORD, ENDED_RECORD = _REQUEST_RECORD.dtype, _ENDED_RECORD.dtype


ENUMS: dict[str, tuple[str, ...] | type[IntEnum] | type[IntFlag]] = {
    "decided_by": Source,
    "decider": Decider,
    "canary_event_kind": GuardEvent,
    "aborted": tuple(f"BY_{by or 'nobody'}".upper() for by in ENDERS),
    "directory_flag": Flag,
    "drawn": DrawFlags,
    "record_kind": RecordKind,
    "record_flag": RecordFlag,
    "void_kind": tuple(f"VOID_{void or 'none'}".upper() for void in VOIDS),
    "named_header": tuple(name.upper() for name in NAMED_HEADERS),
    "count": tuple(name.upper() for name in COUNTS),
    "ring_of": tuple(f"{name}_RING".upper() for name in RINGS),
}
"""By their names in C."""
SIZES = {
    **{"SLOTS": SLOTS, "OUTCOMES": OUTCOMES, "LINES": LINES, "SEATS": SEATS, "CANARY_EVENTS": CANARY_EVENTS},
    "PROMPTS": PROMPTS,
    **{"OWED": OWED, "SIDES": SIDES, "DECIDERS": len(Decider), "COUNTS": len(COUNTS), "RINGS": len(RINGS)},
    **{"NAMED_HEADERS": len(NAMED_HEADERS), "MOST_FORWARDED": MOST_FORWARDED, "MOST_NAMED": MOST_NAMED},
    **{"VERSION_BYTES": VERSION_BYTES, "ENDPOINT_BYTES": ENDPOINT_BYTES, "JOURNAL_RING_BYTES": JOURNAL_RING_BYTES},
    **{"JOURNAL_SEEN": sum(map(len, SEEN.values())), "UNKNOWN_MODEL": UNKNOWN_MODEL, "NO_ENTRY": NO_ENTRY},
}
