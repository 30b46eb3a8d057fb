"""What is simulated: plain frozen records, all times in seconds. Scenario files are read into these.

A worker is a Triton server: per-model queues, dynamic batching, instance groups that share one device. Where a field
copies a Triton setting, its name and meaning are Triton's (docs: "model configuration").
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from balancer.kernel.settings import Settings
from balancer.scheduler.peers import ANSWER_WITHIN_S
from policies.base import FloatArray


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Seconds that one execution takes by its rows: measured points, straight lines between them.

    Below the first point the first holds; beyond the last, the last line goes on.
    """

    rows: tuple[int, ...]
    """Batch sizes measured; ascending, at least 1."""
    device_s: tuple[float, ...]
    """Of each: seconds on the device, for which instances compete."""
    host_s: tuple[float, ...] = ()
    """Of each: seconds on the instance before the device (copies, overhead), in parallel to others; empty: none."""

    def table(self, most_rows: int) -> tuple[FloatArray, FloatArray]:
        """Seconds on the device and on the host for 0 to `most_rows` rows; `(most_rows + 1,)` each, indexed by rows."""
        return self._line(self.device_s, most_rows), self._line(self.host_s or (0.0,) * len(self.rows), most_rows)

    def _line(self, seconds: tuple[float, ...], most_rows: int) -> FloatArray:
        wanted = np.arange(most_rows + 1, dtype=np.float64)
        table: FloatArray = np.interp(wanted, self.rows, seconds)
        if len(self.rows) > 1:
            slope = (seconds[-1] - seconds[-2]) / (self.rows[-1] - self.rows[-2])
            beyond = wanted > self.rows[-1]
            table[beyond] = seconds[-1] + slope * (wanted[beyond] - self.rows[-1])
        return table


@dataclass(frozen=True, slots=True)
class Noise:
    """A random factor of mean 1 on the device seconds of each execution."""

    kind: Literal["none", "lognormal", "exponential"] = "none"
    cv: float = 0.0
    """Coefficient of variation of the lognormal; the exponential has 1."""


@dataclass(frozen=True, slots=True)
class BatchingSpec:
    max_batch_rows: int = 1
    """1: the model does not batch."""
    queue_delay_s: float = 0.0
    """How long the oldest request may wait for a preferred batch."""
    preferred_rows: tuple[int, ...] = ()
    """Sizes worth executing before the delay is over; empty: the maximum alone."""
    priority_levels: int = 1
    """1 to 8. Level 1 goes first."""
    default_priority: int = 1
    """Level of requests with priority 0; those with a larger one than there are go to the last."""
    max_queue_requests: int = 0
    """A request that finds so many queued at its level is rejected (UNAVAILABLE); 0: no limit."""
    timeout_s: float = math.inf
    """A request queued for longer is rejected (UNAVAILABLE), or goes behind the others, when a batch is formed."""
    timeout_action: Literal["reject", "delay"] = "reject"


@dataclass(frozen=True, slots=True)
class GeneratingDevice:
    """What attention takes of a device kind; the rest of a step is the model's service time."""

    memory_tokens: int
    """Tokens whose keys and values fit."""
    context_s: float = 0.0
    """By which a step is longer for each token that sequences which decode have before them."""
    attention_s: float = 0.0
    """By which a step is longer for each pair of a prompt's token and one before it."""


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Continuous batching with chunked prefill, paged memory and a prefix cache, as vLLM, SGLang and TensorRT-LLM have
    it: an execution is a step, its service time that of its tokens."""

    devices: dict[str, GeneratingDevice]
    """By device kind; `*` for any other."""
    step_tokens: int = 2048
    """Most tokens of a step: one of each sequence that decodes, the rest of prompts, first come first served."""
    max_sequences: int = 256
    """Most sequences that decode or have their prompts computed."""

    def on(self, device: str) -> GeneratingDevice | None:
        """Of a device kind; None where there is none."""
        return self.devices.get(device, self.devices.get("*"))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    name: str
    service: dict[str, ServiceTime]
    """By device kind; `*` for any other. Where the model generates, by the tokens of a step instead of rows."""
    noise: Noise = Noise()
    batching: BatchingSpec = BatchingSpec()
    instances: int = 1
    """Executions at once on one worker; where the model generates, 1, as it has one step under way."""
    generation: GenerationSpec | None = None
    """None: requests are executed in batches, each whole."""

    def service_on(self, device: str) -> ServiceTime | None:
        """Of a device kind; None where there is none."""
        return self.service.get(device, self.service.get("*"))

    @property
    def most_at_once(self) -> int:
        """Instances as workers report them: of one that generates, sequences."""
        return self.instances if self.generation is None else self.generation.max_sequences

    @property
    def table_sizes(self) -> int:
        """Largest execution, in what its service time goes by."""
        return self.batching.max_batch_rows if self.generation is None else self.generation.step_tokens


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """How executions on one worker share its device."""

    concurrency: int = 1
    """Executions on the device at once; others wait in the order in which they came."""
    interference: float = 1.0
    """With k at once each runs at rate 1 / (1 + interference * (k - 1)): 1 shares one device, 0 is no contention."""


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    name: str
    device: str = "*"
    """Device kind, which selects the service time."""
    speed: float = 1.0
    """Divides its device seconds."""
    weight: float = 1.0
    """As discovery tells balancers."""
    models: tuple[str, ...] = ()
    """Models loaded at the start; empty: all of the fleet's."""
    present: bool = True
    """Whether it is there at the start; else a `join` or the autoscaler brings it."""
    sharing: DeviceSpec = DeviceSpec()
    zone: str = ""
    """Where it stands, as discovery tells balancers; empty: unknown, which counts as near."""

    def holds(self, model: str) -> bool:
        return not self.models or model in self.models


@dataclass(frozen=True, slots=True)
class Reports:
    period_s: float = 0.05
    delay_s: float = 0.001
    """From sample to balancer."""
    jitter_s: float = 0.0
    """Mean of an exponential delay on top, by report and balancer; a report overtaken is late and ignored."""
    loss: float = 0.0
    """Share of reports lost, by report and balancer."""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    to_worker_s: float = 0.0
    """From a balancer's decision to the worker's queue: the gateway's work included."""
    to_client_s: float = 0.0
    """From the end of execution to the client."""
    jitter_s: float = 0.0
    """Mean of an exponential delay on top of the way to the worker."""
    across_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By a balancer's zone, then by a worker's: what a request takes longer between them, there and back; all of it is
    added to the way there. Zones that are not named are no farther."""
    outcome_s: float = 0.001
    """From the end of execution until the balancer knows of it (Envoy's access log)."""


FaultKind = Literal["slow", "stall", "crash", "errors", "join", "leave", "silent", "load", "unload"]


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    """slow: device seconds times `amount` (thermal). stall: nothing executes. crash: all its requests fail, it is
    unreachable for the duration and comes back cold. errors: a share `amount` of requests is answered at once with an
    error. join: the worker appears and loads for the duration. leave: it drains for good. silent: its reports break
    off. load: it begins to load `model`, which is ready when the duration is over. unload: it drops `model`, which is
    back when the duration is over."""
    worker: str
    at_s: float
    duration_s: float = math.inf
    amount: float = 1.0
    model: str = ""
    """Of load and unload."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    executions: int = 0
    """Its first so many executions are slower."""
    factor: float = 1.0
    """By this factor."""


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Adds absent workers in order and drains the last of those added; off while `period_s` is infinite."""

    period_s: float = math.inf
    up_pending: float = 8.0
    """Mean pending a ready worker above which one is added."""
    down_pending: float = 1.0
    """Below which one is drained."""
    load_s: float = 5.0
    """From being added until it is ready."""
    min_workers: int = 1


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """A key's requests are cheaper on a worker that has seen the key lately (prefix or embedding caches)."""

    entries: int = 0
    """Keys that a worker remembers: a direct-mapped table, so a new key replaces the one in its place. 0: no cache."""
    saving: float = 0.0
    """Share of a request's work saved by a hit."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    models: tuple[ModelSpec, ...]
    workers: tuple[SimulatedWorker, ...]
    balancers: int = 1
    """Requests fall to them at random; each knows its own picks at once and the others' through reports."""
    peers_s: float | None = None
    """From a pick, or its end as its balancer hears of it, until all other balancers know of it; None: they are not
    told. Of prompts reports tell."""
    reports: Reports = Reports()
    network: NetworkSpec = NetworkSpec()
    faults: tuple[Fault, ...] = ()
    cold: ColdStart = ColdStart()
    autoscale: Autoscale = Autoscale()
    cache: CacheSpec = CacheSpec()
    retries: int = 2
    """Attempts after the first where nothing was executed: at the decision's fallbacks, in turn, as Envoy does."""
    settings: Settings = field(default_factory=Settings)
    """The routers'; model names in `settings.models` are the fleet's."""
    zones: tuple[str, ...] = ()
    """Where each balancer stands; empty: all in `settings.zones.own`."""
    tenants: tuple[str, ...] = ()
    """Names of tenants, by their numbers in arrivals; for the weights in `settings.holding`."""

    @property
    def report_delay_s(self) -> float:
        """From when a report is taken until a balancer has it, but for jitter.

        Several balancers are asked first what they have in flight: question and answer take a way each.
        """
        exchange_s = min(2 * self.reports.delay_s, ANSWER_WITHIN_S) if self.balancers > 1 else 0.0
        return self.reports.delay_s + exchange_s

    @property
    def tells_peers(self) -> bool:
        return self.balancers > 1 and self.peers_s is not None

    @property
    def generates(self) -> bool:
        """Whether any of its models does."""
        return any(model.generation is not None for model in self.models)

    def zone_of(self, balancer: int) -> str:
        """Where a balancer stands; empty: zones do not matter to it."""
        return self.zones[balancer] if self.zones else self.settings.zones.own

    def may_hold(self, worker: SimulatedWorker, model: str) -> bool:
        return worker.holds(model) or any(
            fault.kind == "load" and fault.worker == worker.name and fault.model == model for fault in self.faults
        )

    def settings_of(self, balancer: int) -> Settings:
        return replace(self.settings, zones=replace(self.settings.zones, own=self.zone_of(balancer)))

    def across_s(self, balancer: int, worker: SimulatedWorker) -> float:
        """What a request takes longer from a balancer to a worker than within a zone."""
        return self.network.across_s.get(self.zone_of(balancer), {}).get(worker.zone, 0.0)
