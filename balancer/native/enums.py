"""Numbers by which the balancer and Envoy's module tell each other things; `layouts.py` says where they stand."""

from enum import IntEnum, IntFlag


class Source(IntEnum):
    """Who decided where a request goes."""

    BY_POLICY = 1
    BY_LEAST_REQUEST = 2
    """Envoy itself."""
    REFUSED = 3


class Decider(IntEnum):
    """Which of the policies of a directory decided."""

    POLICY = 0
    STICKY = 1
    """A hash, by the request's key."""
    SEQUENCES = 2
    """A hash, by its sequence."""
    BASELINE = 3
    """The guard's."""
    NEW = 4
    """The one that is rolled out."""


class GuardEvent(IntEnum):
    """What guard and rollout learn of a request."""

    CANARY_TAKEN = 1
    CANARY_SHED = 2
    CANARY_ENDED = 3
    CANARY_DROPPED = 4
    """It says nothing."""


class Flag(IntFlag):
    """Of a directory."""

    REPORTS_REQUIRED = 1
    STICKY_KEYS = 2
    DECISION_LOG = 4
    """Decisions are written into the journal."""
    GIVES_VERSIONS = 8
    """Requests for some model that name no version get one."""
    LIMITS_TENANTS = 16
    """Of models that the balancer forwards: it decides those of their requests that it does not."""
    SEVERAL_PROTOCOLS = 32
    """Not all workers have all kinds of ports."""


class DrawFlags(IntFlag):
    """Of a request whose model is split: what was drawn for it."""

    DRAWN_NEW = 1
    """The new version."""
    DRAWN_BY_KEY = 2
    """Drawn by a hash of its key."""


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
