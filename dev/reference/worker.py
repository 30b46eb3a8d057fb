"""One Triton server and its agent's memory."""

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from balancer.scheduler.events import ModelReport, SentPrompt, WorkerAdded
from dev.emulated_llm.batch import Batch
from dev.reference.batcher import LiveRequest, Queue
from dev.reference.device import Device, Execution
from simulator.spec import FleetSpec, ModelSpec

_WINDOW_S = 0.15


@dataclass
class Counters:
    """Of one model, cumulative."""

    batches: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By rows: executions, and their seconds."""
    compute_s: float = 0.0
    """Seconds of executions times their requests."""
    succeeded: int = 0

    def count(self, rows: int, requests: int, seconds: float) -> None:
        executions, total_s = self.batches.get(rows, (0, 0.0))
        self.batches[rows] = executions + 1, total_s + seconds
        self.compute_s += seconds * requests
        self.succeeded += requests


class Worker:
    def __init__(self, fleet: FleetSpec, index: int, block_tokens: int) -> None:
        self.index = index
        self.spec = fleet.workers[index]
        self.fleet = fleet
        self.state: Literal["absent", "loading", "up", "down"] = "up" if self.spec.present else "absent"
        self.draining = False
        self.silent = False
        self.error_share = 0.0
        held = self.spec.models or tuple(model.name for model in fleet.models)
        to_come = {f.model for f in fleet.faults if f.kind == "load" and f.worker == self.spec.name}
        self.models = {m: model for m, model in enumerate(fleet.models) if model.name in {*held, *to_come}}
        """All that it ever has."""
        self.ready = {model.name: True for model in self.models.values() if model.name in held}
        """Whether those that were loaded once still are, by name."""
        self.sequences: dict[int, int] = {}
        """Those that it knows, with their models."""
        self.queues = {m: Queue(model.batching) for m, model in self.models.items()}
        self.tables = {m: self._table(model) for m, model in self.models.items()}
        self.slots: list[Execution | None] = [None] * sum(model.instances for model in self.models.values())
        self.batches = {m: self._batch(model, block_tokens) for m, model in self.models.items() if model.generation}
        """Of models that generate."""
        self.device = Device(self.spec.sharing)
        self.device_version = 0
        """Grows whenever the device's next end is scheduled anew."""
        self.started = 0
        """Executions ever."""
        self.cold_left = 0
        """Executions until it is warm."""
        self.cache: dict[int, int] = {}
        self.prompts: list[tuple[int, SentPrompt]] = []
        """Those that were sent there, and by which balancer."""
        self.incarnation = 1
        self.number = 0
        """Reports taken."""
        self.stream = 0
        """Grows when the report stream breaks."""
        self._start_counters()

    def _batch(self, model: ModelSpec, block_tokens: int) -> Batch[LiveRequest]:
        assert model.generation is not None  # the caller looked
        devices = model.generation.devices
        return Batch(model.generation, devices.get(self.spec.device) or devices["*"], block_tokens)

    def _table(self, model: ModelSpec) -> tuple[list[float], list[float]]:
        service = model.service.get(self.spec.device) or model.service["*"]
        device_s, host_s = service.table(model.table_sizes)
        return device_s.tolist(), host_s.tolist()

    def _start_counters(self) -> None:
        samples = max(1, math.ceil(_WINDOW_S / self.fleet.reports.period_s))
        self.counters = {m: Counters() for m in self.models}
        self.samples: dict[int, deque[tuple[float, float]]] = {m: deque(maxlen=samples) for m in self.models}

    @property
    def device_kind(self) -> str:
        """As balancers are told."""
        return "" if self.spec.device == "*" else self.spec.device

    @property
    def added(self) -> WorkerAdded:
        """What discovery says."""
        spec = self.spec
        return WorkerAdded(spec.name, spec.weight, self.device_kind, draining=self.draining, zone=spec.zone)

    @property
    def pending(self) -> int:
        """Requests queued or executing."""
        executing = sum(len(execution.batch) for execution in self.slots if execution)
        executing += sum(len(batch.running) for batch in self.batches.values())
        return sum(map(len, self.queues.values())) + executing

    def is_loaded(self, model: str) -> bool:
        return self.ready.get(model, False)

    def load(self, model: str) -> None:
        self.ready[model] = True

    def unload(self, model: str) -> None:
        """It forgets the model's sequences; what waits there is executed still."""
        self.ready[model] = False
        self.sequences = {q: m for q, m in self.sequences.items() if self.models[m].name != model}

    def free_instance(self, m: int) -> bool:
        executing = sum(1 for execution in self.slots if execution and execution.model == m)
        return executing < self.models[m].instances

    def effective_work(self, request: LiveRequest) -> float:
        """Less what the cache saves; the key is remembered."""
        cache = self.fleet.cache
        if not request.key or not cache.entries:
            return request.work
        place = request.key % cache.entries
        hit = self.cache.get(place) == request.key
        self.cache[place] = request.key
        return request.work * (1 - cache.saving) if hit else request.work

    def cold_factor(self) -> float:
        """Of the execution that starts now, which counts."""
        self.cold_left -= 1
        return self.fleet.cold.factor if self.cold_left >= 0 else 1.0

    def come_up(self) -> None:
        self.state = "up"
        self.cold_left = self.fleet.cold.executions

    def crash(self, now_s: float) -> list[LiveRequest]:
        """Lose everything; returns the requests that were there."""
        self.state = "down"
        executing = [execution for execution in self.slots if execution]
        lost = [*chain(*(queue.clear() for queue in self.queues.values()))]
        for execution in executing:
            execution.lost = True
            lost += execution.batch
            if execution.model in self.batches:
                lost += self.batches[execution.model].clear()
        for batch in self.batches.values():
            batch.clear()
        self.slots = [None] * len(self.slots)
        self.device.clear(now_s)
        self.cache.clear()
        self.sequences.clear()
        self.incarnation += 1
        self.prompts = []
        self._start_counters()
        return lost

    def report_model(self, m: int, now_s: float) -> ModelReport:
        """Take a sample of one model."""
        model, counters, samples = self.models[m], self.counters[m], self.samples[m]
        executing = 0.0
        if samples and now_s > samples[0][0]:
            then_s, compute_s = samples[0]
            most = model.batching.max_batch_rows * model.instances
            executing = min((counters.compute_s - compute_s) / (now_s - then_s), float(most))
        if m in self.batches:
            executing = float(len(self.batches[m].running))
        samples.append((now_s, counters.compute_s))
        return ModelReport(
            model=model.name,
            version="1",
            ready=self.ready[model.name],
            pending=float(len(self.queues[m])),
            executing=executing,
            succeeded=counters.succeeded,
            max_batch_rows=model.batching.max_batch_rows if self.ready[model.name] else 1,
            instances=model.most_at_once if self.ready[model.name] else 1,
            batches=tuple((rows, *counters.batches[rows]) for rows in sorted(counters.batches)),
            memory_tokens=self.batches[m].device.memory_tokens if m in self.batches else 0,
            held_tokens=self.batches[m].held if m in self.batches else 0,
        )
