"""What the router takes in. Events are facts with no clock in them: time comes beside them, as `now_s`."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from policies.base import Prefix

Void = Literal["", "client", "deadline", "request"]
"""What ended a request other than the worker: `client`, who left or asked for what cannot be; `deadline`, the request's
own, which passed; `request`, an error that it may have caused itself: an input that a model or a server fails at."""


@dataclass(frozen=True, slots=True)
class WorkerAdded:
    """Discovery found a worker, or changed what it says of one that is known."""

    worker: str
    weight: float = 1.0
    device: str = ""
    """Device kind, such as `A100`; empty: unknown until a report says it."""
    memory_bytes: int = 0
    """Device memory; 0: unknown until a report says it."""
    draining: bool = False
    zone: str = ""
    """Where it stands; empty: unknown."""


@dataclass(frozen=True, slots=True)
class WorkersAdded:
    """Several at once, each as `WorkerAdded` says: estimates are fitted once for all of them."""

    workers: tuple[WorkerAdded, ...]


@dataclass(frozen=True, slots=True)
class WorkerRemoved:
    worker: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One version of one model on one worker. Counters are cumulative, so a lost report loses nothing."""

    model: str
    version: str
    ready: bool
    pending: float = 0.0
    """Requests queued at Triton, not yet executing."""
    executing: float = 0.0
    """Mean number executing since the last report (Little's law over the compute-time counter)."""
    succeeded: int = 0
    failed: int = 0
    max_batch_rows: int = 1
    """1 for a model that does not batch."""
    instances: int = 1
    batches: tuple[tuple[int, int, float], ...] = ()
    """(rows, executions, seconds of compute in all) for each batch size seen, cumulative."""
    memory_tokens: int = 0
    """Of a model that generates: tokens that its memory holds; 0: not known."""
    held_tokens: int = 0
    """Those that requests hold in there."""


class SentPrompt(NamedTuple):
    """A prompt that a balancer sent to a worker."""

    model: str
    tokens: float
    prefix: Prefix


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker's agent says of it, 20 to 100 times a second while requests flow."""

    worker: str
    incarnation: int
    """Of the agent and its Triton; counters start anew with another one. It orders the reports of one stream
    only, where it grows with every start of Triton."""
    number: int
    """Grows by one with every report of an incarnation."""
    ready: bool
    models: tuple[ModelReport, ...] = ()
    balancers: int = 1
    """How many balancers this agent reports to: each sees about one share of the traffic."""
    device: str = ""
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    utilisation: float = float("nan")
    """Of the device, 0 to 1."""
    draining: bool = False
    """Whether the worker is about to stop, as its agent knows: it finishes what it has and gets nothing new."""
    peers_in_flight: tuple[tuple[str, int], ...] | None = None
    """(model, requests) of all that other balancers have in flight there; None: not known, or there are none."""
    peers_waiting_tokens: float = 0.0
    """Tokens of those requests' prompts of which nothing was generated yet."""
    peers_prompts: tuple[SentPrompt, ...] = ()
    """Those that other balancers sent there, of which no report has told."""
    stream: int = 0
    """Which of this process's streams carried it, numbered by the receiver as they come: the newest stream of a worker
    is the worker, whatever numbers the older ones carried."""


@dataclass(frozen=True, slots=True)
class ReportsLost:
    """The report stream of a worker broke: its agent, or the way to it, is gone."""

    worker: str


class PeerPicks(NamedTuple):
    """What a peer, another balancer, sent to a worker of a model since it knows it: all there ever were."""

    worker: str
    model: str
    sent: int
    sent_rows: float
    done: int
    """Of those, how many ended, as far as the peer knows."""
    done_rows: float

    def at_its_start(self) -> "PeerPicks":
        """Before any of those was sent that are in flight."""
        return self._replace(sent=self.done, sent_rows=self.done_rows)

    def all_done(self) -> "PeerPicks":
        """Once they have all ended."""
        return self._replace(done=self.sent, done_rows=self.sent_rows)


@dataclass(frozen=True, slots=True)
class PeerTold:
    """A peer tells of its picks, where they differ from what it told before."""

    peer: str
    picks: tuple[PeerPicks, ...]
    waits: tuple[tuple[str, float], ...] = ()
    """Workers, and how many tokens of its prompts wait there."""


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer tells no more."""

    peer: str


@dataclass(frozen=True, slots=True)
class Sent:
    number: int
    worker: str
    model: str
    rows: float = 1


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A model has begun to generate the answer to a picked request: its prompt is computed."""

    number: int


class Finished(NamedTuple):
    """The outcome of a request, as Envoy's access log has it. One comes of each request, and this takes half the time
    of a frozen dataclass to make."""

    number: int
    """Of the `Sent` it ends; -1 where this balancer did not pick."""
    worker: str
    """That served, which a retry makes differ from the one picked; empty: none did."""
    latency_s: float | None
    """Of the worker's answer; None where that is no measure of the worker, such as the duration of a stream."""
    ok: bool
    """False for what the worker or the way to it got wrong."""
    void: Void = ""
    """Why this is no answer of the worker's, so that nothing is learned of it; empty: it is one."""
    output_tokens: float = 0.0
    """Of a model that generates: tokens of the answer; 0: not known."""
    said_s: float = math.nan
    """When the last of them came; not a number: now."""
    cached_tokens: float = 0.0
    """Tokens of the prompt that the worker reported as cached; 0: none, or it does not report them."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A picked request ended before any worker got it: its client left. That says nothing of the worker."""

    number: int


Event = (
    WorkerAdded | WorkersAdded | WorkerRemoved | Report | ReportsLost | PeerTold | PeerLost
    | Sent | FirstToken | Finished | Withdrawn
)  # fmt: skip
