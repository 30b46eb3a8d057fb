"""What the page and `balancer top` show, stated once: written by the balancer, read back by `balancer top`.

null stands for what is infinite or unknown. Everything is bounded: what is left out is counted.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from balancer.config.watch import Applied
from balancer.server.events import Event
from balancer.server.tally import TrafficSummary

MOST_WORKERS = 512
MOST_MODELS = 256
MOST_PARTS = 64

Number = float | None


@dataclass(frozen=True, slots=True)
class Process:
    number: int
    processes: int
    version: str
    up_s: float
    frontend: str
    """`pick`, `native` or `proxy`."""
    not_deciding_because: str
    """With `native`: why Envoys ask and do not decide; empty: they decide."""
    not_ready: str
    """Why picks cannot be made; empty: they can."""
    policy: str
    decides: str
    """Who decides now, in words: the policy, or who stands in for it, and who has a part of the requests."""
    learning: str
    """What `balancer learn` is at, in words; empty: nobody learns."""
    learning_since_s: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class PageWorker:
    """One worker, for the model that is asked about where a number depends on the model."""

    name: str
    state: str
    """`ready`, `not ready`, `silent`, `drained by hand`, `draining` (by its agent or discovery), or `no report`."""
    why_not: list[str]
    """Why it would get no request for the model; empty: it may."""
    device: str
    pending: Number
    """Requests queued or executing there, all balancers'."""
    in_flight: Number
    """Requests that this process has there."""
    backlog_s: Number
    """Until all that is there is done."""
    answers_per_s: float
    """That this process saw within the window."""
    errors: int
    p50_s: Number
    p99_s: Number
    rows_per_s: Number
    """That one instance serves at full batches, as learned; null: not learned yet."""
    error_rate: Number
    report_age_s: Number
    waiting_tokens: Number
    """Prompt tokens that it has still to compute."""
    memory_share: Number
    """Of the tokens for which its memory has room, those that requests hold; null: it does not tell."""
    utilisation: Number


@dataclass(frozen=True, slots=True)
class TrafficRow(TrafficSummary):
    model: str
    policy: str
    """Empty: Envoy placed them by itself, or nobody did."""


@dataclass(frozen=True, slots=True)
class AllTraffic(TrafficSummary):
    window_s: float
    picked: int
    without_pick: int
    parts: list[TrafficRow]
    parts_left_out: int


@dataclass(frozen=True, slots=True)
class ConfigShown:
    source: str
    hash: str
    refused: int
    problems: list[str]
    """Why the newest file is not in force; empty: it is."""
    refused_at_s: float
    waiting: list[str]
    """What the newest file changes that a restart takes over."""
    history: list[Applied]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    unit: str
    says: str


@with_config(ConfigDict(ser_json_inf_nan="null"))
@dataclass(frozen=True, slots=True)
class PageDocument:
    at_s: float
    process: Process
    recent: AllTraffic
    states: dict[str, int]
    workers: list[PageWorker]
    """Those that are not well first where not all are shown."""
    workers_left_out: int
    models: list[str]
    models_left_out: int
    why: dict[str, Any]
    """As `/explain` of the model that is asked about; empty: there is no model."""
    reads: list[Column]
    """The columns that the policy reads for that."""
    config: ConfigShown
    refusals: dict[str, float]
    """Requests answered without a worker since the start, by reason."""
    fallbacks: dict[str, float]
    """Requests not served as picked since the start, by cause."""
    refused_inputs: dict[str, float]
    """Messages out of bounds since the start, by message and field."""
    events: list[Event]
    canary: dict[str, Any]


DOCUMENT: TypeAdapter[PageDocument] = TypeAdapter(PageDocument)
