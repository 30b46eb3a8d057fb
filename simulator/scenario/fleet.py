"""The fleet in a scenario's file. The text under a field is its documentation; sections without a class are `spec`'s.

All times are in seconds, but for the tables of measured service times, which are in milliseconds as their sources are.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.files.schema import Positive, StrictModel, did_you_mean, field_error
from balancer.kernel.settings import Settings
from simulator.spec import (
    Autoscale,
    BatchingSpec,
    CacheSpec,
    ColdStart,
    DeviceSpec,
    Fault,
    FleetSpec,
    GeneratingDevice,
    GenerationSpec,
    ModelSpec,
    NetworkSpec,
    Noise,
    Reports,
    ServiceTime,
    SimulatedWorker,
)

Zone = Annotated[str, StringConstraints(max_length=63)]
Table = Mapping[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]]

_AT_LEAST = {
    **dict.fromkeys(("concurrency", "default_priority", "instances", "max_batch_rows", "min_workers"), 1),
    **dict.fromkeys(("priority_levels", "memory_tokens"), 1),
    **dict.fromkeys(("timeout_s", "stale_after_s", "outcome_timeout_s", "max_pending_per_worker"), 1e-6),
    **dict.fromkeys(("sheddable_max_pending_per_worker", "latency_decay_s", "error_decay_s"), 1e-6),
    **dict.fromkeys(("service_memory", "service_memory_s", "default_service_s", "key_memory"), 1e-6),
    **dict.fromkeys(("refill_per_s", "target_pending", "factor", "amount"), 1e-6),
    "period_s": 1e-3,
}
"""By the name of a number in a section that is a plain record; others are at least 0."""
_AT_MOST = {"loss": 1, "saving": 1, "priority_levels": 8, "max_fallbacks": 16}


class GenerationSection(StrictModel):
    """Continuous batching, as servers of language models have it. Its service times are those of a step by its tokens,
    attention apart."""

    step_tokens: int = Field(default=2048, ge=1, le=65_536)
    """Most tokens of a step: one of each sequence that decodes, the rest of prompts."""
    max_sequences: int = Field(default=256, ge=1, le=65_536)
    """Most sequences that decode or have their prompts computed."""
    kv_heads: int | None = Field(default=None, ge=1)
    """With `measured`: heads of keys and values, where fewer than the model's own."""
    devices: Mapping[str, GeneratingDevice] = {}
    """With `device_ms`, by device kind, `*` for any other: memory and attention."""

    @model_validator(mode="after")
    def _steps_hold_sequences(self) -> Self:
        if self.max_sequences > self.step_tokens:
            rule = f"must be at most step_tokens, {self.step_tokens}"
            raise field_error(("max_sequences",), self.max_sequences, rule)
        return self

    def spec(self, devices: Mapping[str, GeneratingDevice]) -> GenerationSpec:
        """On these devices."""
        return GenerationSpec(dict(devices), self.step_tokens, self.max_sequences)


class ScenarioModelSection(StrictModel):
    """A model as workers hold it. Its service time comes from `measured` or from `device_ms`."""

    measured: str | None = None
    """Name of a model in the shipped table of measurements, for every device kind of the fleet; of one that generates,
    in that of steps."""
    device_ms: Mapping[str, Table] | None = None
    """By device kind, `*` for any other: milliseconds on the device by rows; of a model that generates, by tokens."""
    host_ms: Mapping[str, Table] = {}
    """By device kind, for the same rows: milliseconds on the instance before the device; nothing: none."""
    noise: Noise = Noise()
    """A random factor on each execution."""
    batching: BatchingSpec = BatchingSpec()
    """Triton's dynamic batcher."""
    instances: int = Field(default=1, ge=1)
    """Executions at once on one worker."""
    generation: GenerationSection | None = None
    """The model generates tokens; none: requests are executed in batches, each whole."""

    @model_validator(mode="after")
    def _devices_of_generation(self) -> Self:
        if self.generation is None:
            return self
        if (self.measured is None) == (not self.generation.devices):
            raise field_error(("generation", "devices"), {}, "must be given with device_ms, and with that alone")
        if self.measured is None and self.generation.kv_heads is not None:
            raise field_error(("generation", "kv_heads"), self.generation.kv_heads, "goes with measured alone")
        for device in self.device_ms or {}:
            if device not in self.generation.devices and "*" not in self.generation.devices:
                raise field_error(("generation", "devices"), [*self.generation.devices], f"must name {device} or *")
        if self.instances > 1:
            raise field_error(("instances",), self.instances, "is not of a model that generates: leave it out")
        plain = BatchingSpec()
        for name in ("max_batch_rows", "queue_delay_s", "preferred_rows", "timeout_s"):
            if (value := getattr(self.batching, name)) != getattr(plain, name):
                raise field_error(("batching", name), value, "is not of a model that generates: leave it out")
        return self

    @model_validator(mode="after")
    def _one_service(self) -> Self:
        if (self.measured is None) == (self.device_ms is None):
            raise ValueError("must have exactly one of measured, device_ms")
        for device, table in (self.device_ms or {}).items():
            if not table:
                raise field_error(("device_ms", device), table, "must have a point, such as {1: 3.4}")
        for device, table in self.host_ms.items():
            if table.keys() != (self.device_ms or {}).get(device, {}).keys():
                raise field_error(("host_ms", device), dict(table), "must have the rows of the same device's device_ms")
        levels = self.batching.priority_levels
        if self.batching.default_priority > levels:
            rule = f"must be at most priority_levels, {levels}"
            raise field_error(("batching", "default_priority"), self.batching.default_priority, rule)
        return self

    def spec(self, name: str, devices: set[str]) -> ModelSpec:
        """The model for a fleet with these device kinds; raises `ValueError` where nothing was measured for one."""
        if self.measured is None:
            service = {device: self._service(device) for device in self.device_ms or {}}
            generation = None if self.generation is None else self.generation.spec(self.generation.devices)
        elif self.generation is None:
            from simulator.service import measured  # noqa: PLC0415 - reads a table that other scenarios do not need

            service, generation = {device: measured(self.measured, device) for device in sorted(devices)}, None
        else:
            from simulator.language_models import measured_steps, roofline  # noqa: PLC0415 - as above

            service = {device: measured_steps(self.measured, device) for device in sorted(devices)}
            attention = {device: roofline(self.measured, device, self.generation.kv_heads) for device in service}
            generation = self.generation.spec(attention)
        return ModelSpec(name, service, self.noise, self.batching, self.instances, generation)

    def _service(self, device: str) -> ServiceTime:
        table, host = (self.device_ms or {})[device], self.host_ms.get(device, {})
        rows = tuple(sorted(table))
        return ServiceTime(rows, tuple(table[r] / 1e3 for r in rows), tuple(host[r] / 1e3 for r in rows if host))


class WorkerGroup(StrictModel):
    """Some equal workers."""

    count: int = Field(default=1, ge=1, le=10_000)
    """How many."""
    name: str | None = None
    """They are called so with a number from 0 behind it; default: the device in lower case, or `worker`."""
    device: str = "*"
    """Device kind, which selects the service time."""
    speed: Positive = 1.0
    """Divides the device seconds."""
    weight: Positive = 1.0
    """As discovery tells balancers."""
    models: tuple[str, ...] = ()
    """Models loaded; empty: all."""
    present: bool = True
    """Whether they are there at the start; else a `join` or the autoscaler brings them."""
    sharing: DeviceSpec = DeviceSpec()
    """How executions share the device."""
    zone: Zone = ""
    """Where they stand, as discovery tells balancers; empty: unknown, which counts as near."""

    @property
    def base(self) -> str:
        """The name without its number."""
        return self.name or ("worker" if self.device == "*" else self.device.lower())

    def spec(self, name: str) -> SimulatedWorker:
        """One of them."""
        return SimulatedWorker(name, **{field: value for field, value in self if field not in ("count", "name")})


class ScenarioFleetSection(StrictModel):
    """All that does not depend on the requests."""

    models: Annotated[Mapping[str, ScenarioModelSection], Field(min_length=1)]
    """By name."""
    workers: Annotated[tuple[WorkerGroup, ...], Field(min_length=1)]
    """In groups of equal ones; those whose groups share a name are numbered on."""
    balancers: int = Field(default=1, ge=1, le=64)
    """Requests fall to them at random."""
    peers_s: Annotated[float, Field(ge=0, le=10)] | None = None
    """How long a pick, or its end, is on its way to the other balancers; null: they are not told."""
    reports: Reports = Reports()
    """The agents' report streams."""
    network: NetworkSpec = NetworkSpec()
    """Delays between the parts."""
    faults: tuple[Fault, ...] = ()
    """What happens to workers."""
    cold: ColdStart = ColdStart()
    """A worker that has just joined or restarted."""
    autoscale: Autoscale = Autoscale()
    """Adds and drains workers."""
    cache: CacheSpec = CacheSpec()
    """Keys are cheaper where they were seen."""
    retries: int = Field(default=2, ge=0, le=16)
    """Attempts after the first where nothing was executed."""
    settings: Settings = Settings()
    """The balancers' settings, as the core has them."""
    zones: tuple[Zone, ...] = ()
    """Where each balancer stands; empty: all in `settings.zones.own`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for path, value, rule in itertools.chain(_out_of_range(self), self._strangers()):
            raise field_error(path, value, rule)
        return self

    def _strangers(self) -> Iterator[tuple[tuple[str | int, ...], Any, str]]:
        workers = {worker.name: worker for worker in self.worker_specs()}
        for i, group in enumerate(self.workers):
            for j, name in enumerate(group.models):
                if name not in self.models:
                    yield ("workers", i, "models", j), name, f"no such model; {did_you_mean(name, self.models)}"
            for name in group.models or self.models:
                kinds = self.models[name].device_ms
                if kinds is not None and group.device not in kinds and "*" not in kinds:
                    rule = f"model {name!r} has no device_ms for it; {did_you_mean(group.device, kinds)}"
                    yield ("workers", i, "device"), group.device, rule
        for i, fault in enumerate(self.faults):
            worker = workers.get(fault.worker)
            if worker is None:
                yield ("faults", i, "worker"), fault.worker, f"no such worker; {did_you_mean(fault.worker, workers)}"
            elif fault.kind == "join" and worker.present:
                yield ("faults", i, "worker"), fault.worker, "is there from the start: give its group `present: false`"
            if fault.kind == "errors" and fault.amount > 1:
                yield ("faults", i, "amount"), fault.amount, "must be a share of requests, at most 1"
        yield from self._strange_models()
        yield from self._strange_zones()
        for name in self.settings.models:
            if name not in self.models:
                yield ("settings", "models", name), name, f"no such model; {did_you_mean(name, self.models)}"

    def _strange_models(self) -> Iterator[tuple[tuple[str | int, ...], Any, str]]:
        for i, fault in enumerate(self.faults):
            of_model = fault.kind in ("load", "unload")
            if of_model and fault.model not in self.models:
                yield ("faults", i, "model"), fault.model, f"no such model; {did_you_mean(fault.model, self.models)}"
            if not of_model and fault.model:
                yield ("faults", i, "model"), fault.model, "is of load and unload alone: leave it out"

    def _strange_zones(self) -> Iterator[tuple[tuple[str | int, ...], Any, str]]:
        if self.zones and len(self.zones) != self.balancers:
            yield ("zones",), list(self.zones), f"must be as many as there are balancers, {self.balancers}, or none"
        owns, theirs = {*self.zones, self.settings.zones.own} - {""}, {group.zone for group in self.workers} - {""}
        for own, ways_s in self.network.across_s.items():
            if own not in owns:
                yield ("network", "across_s", own), own, f"no balancer is there; {did_you_mean(own, owns)}"
            for other in ways_s.keys() - theirs:
                yield (
                    ("network", "across_s", own, other),
                    other,
                    f"no worker is there; {did_you_mean(other, theirs)}",
                )

    def worker_specs(self) -> tuple[SimulatedWorker, ...]:
        """The workers one by one, named."""
        workers: list[SimulatedWorker] = []
        numbers: dict[str, int] = {}
        for group in self.workers:
            for _ in range(group.count):
                number = numbers.get(group.base, 0)
                numbers[group.base] = number + 1
                workers.append(group.spec(f"{group.base}-{number}"))
        return tuple(workers)

    def spec(self) -> FleetSpec:
        """The fleet; raises `ValueError` where a service time was not measured."""
        devices = {group.device for group in self.workers}
        return FleetSpec(
            models=tuple(model.spec(name, devices) for name, model in self.models.items()),
            workers=self.worker_specs(),
            **{name: value for name, value in self if name not in ("models", "workers")},
        )


def _out_of_range(section: Any) -> Iterator[tuple[tuple[str | int, ...], Any, str]]:
    """Numbers in the plain records below a section that are not in their range, each with its place and the rule."""
    if isinstance(section, StrictModel):
        below: Iterable[tuple[Any, Any]] = ((name, getattr(section, name)) for name in type(section).model_fields)
    elif is_dataclass(section):
        below = ((field.name, getattr(section, field.name)) for field in fields(section))
    else:
        below = section.items() if isinstance(section, Mapping) else enumerate(section)
    for name, value in below:
        if isinstance(value, StrictModel | Mapping | tuple) or is_dataclass(value):
            yield from (((name, *path), inner, rule) for path, inner, rule in _out_of_range(value))
        elif isinstance(value, int | float) and not _AT_LEAST.get(name, 0) <= value <= _AT_MOST.get(name, float("inf")):
            rule = f"must be at least {_AT_LEAST.get(name, 0):g}"
            yield (name,), value, rule + (f" and at most {_AT_MOST[name]}" if name in _AT_MOST else "")
