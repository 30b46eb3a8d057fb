"""Measures a live Triton: how long each model takes by batch size, from the server's own statistics.

One request at a time, so an execution is one request and nobody waits for another. Statistics are read around each, so
that the spread is known too, and other clients are noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from balancer.config.profile_file import ModelProfile, Profile, ProfilePoint
from balancer.errors import OperatorError
from balancer.load.inputs import InputShape, tensors

_CALL_TIMEOUT_S = 5.0
_INFER_TIMEOUT_S = 120.0
_COUNTED_WITHIN_S = 1.0
"""Triton counts an execution a moment after it has answered."""
_CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

Seconds = tuple[int, float, float]
"""Executions, their seconds in all, and those of these in which inputs were gathered."""


class ProfileError(OperatorError):
    """A model cannot be measured; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is sent for each model; each batch size ends at `executions` or at `seconds`, whichever comes first."""

    batches: tuple[int, ...] = ()
    """Batch sizes; empty: powers of two up to the model's largest batch, and that."""
    executions: int = 50
    seconds: float = 5.0
    warm_up: int = 5
    """Executions of each batch size that are not counted: the first ones load, compile and tune."""


class Profiler:
    def __init__(self, address: str, sweep: Sweep, on_point: Callable[[str, ProfilePoint], None]) -> None:
        """`address` is `host:port`; `on_point` hears of each batch size when it is done."""
        self._address = address
        self._sweep = sweep
        self._on_point = on_point
        self._client = triton.InferenceServerClient(address, channel_args=_CHANNEL_OPTIONS)
        self.shared: set[str] = set()
        """Models to which other clients sent meanwhile: their times may include waiting for each other."""

    def close(self) -> None:
        self._client.close()

    def profile(self, device: str, models: Sequence[str]) -> Profile:
        """Measure models one after the other.

        Raises:
            ProfileError: the server does not answer, or a model cannot be measured.
        """
        try:
            server = self._client.get_server_metadata(client_timeout=_CALL_TIMEOUT_S)
        except InferenceServerException as error:
            remedy = "give host and gRPC port of a Triton that is running (8001 unless it was told otherwise)"
            raise ProfileError(f"{self._address} does not answer: {error.message()}; {remedy}") from error
        plans = [self._plan(model) for model in models]
        return Profile(
            device=device,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            server=f"{server.name} {server.version}",
            concurrency=1,
            models=tuple(self._measure(plan) for plan in plans),
        )

    def _plan(self, model: str) -> _Plan:
        try:
            metadata = self._client.get_model_metadata(model, client_timeout=_CALL_TIMEOUT_S)
            config = self._client.get_model_config(model, client_timeout=_CALL_TIMEOUT_S).config
        except InferenceServerException as error:
            raise ProfileError(f"model {model}: {error.message()}; ready here: {', '.join(self._ready())}") from error
        if reason := _not_measurable(config):
            raise ProfileError(f"model {model} {reason}")
        declared = [InputShape(one.name, one.datatype, tuple(one.shape)) for one in metadata.inputs]
        return _Plan(
            model=model,
            # Triton serves the highest version to those who name none.
            version=max(metadata.versions, key=lambda version: (len(version), version)),
            max_batch_size=config.max_batch_size,
            instances=max(sum(group.count * max(len(group.gpus), 1) for group in config.instance_group), 1),
            batches={rows: _inputs(model, declared, rows, config) for rows in _sizes(model, self._sweep, config)},
        )

    def _ready(self) -> list[str]:
        index = self._client.get_model_repository_index(client_timeout=_CALL_TIMEOUT_S)
        return sorted({model.name for model in index.models if model.state == "READY"}) or ["none"]

    def _measure(self, plan: _Plan) -> ModelProfile:
        points = []
        for rows, inputs in plan.batches.items():
            for _ in range(self._sweep.warm_up):
                self._execute(plan, rows, inputs)
            points.append(self._point(plan, rows, inputs))
            self._on_point(plan.model, points[-1])
        return ModelProfile(
            model=plan.model,
            version=plan.version,
            max_batch_rows=max(plan.max_batch_size, 1),
            instances=plan.instances,
            points=tuple(points),
        )

    def _point(self, plan: _Plan, rows: int, inputs: list[triton.InferInput]) -> ProfilePoint:
        samples: list[Seconds] = []
        deadline_s = time.monotonic() + self._sweep.seconds
        while not samples or (len(samples) < self._sweep.executions and time.monotonic() < deadline_s):
            samples.append(self._execute(plan, rows, inputs))
        executions, total_s, input_s = np.array(samples).T
        return ProfilePoint(
            rows=rows,
            mean_s=_nanoseconds(total_s.sum() / executions.sum()),
            input_s=_nanoseconds(input_s.sum() / executions.sum()),
            std_s=_nanoseconds(np.std(total_s / executions, ddof=1)) if len(samples) > 1 else None,
            executions=int(executions.sum()),
        )

    def _execute(self, plan: _Plan, rows: int, inputs: list[triton.InferInput]) -> Seconds:
        """Send one request, and say what the server counted of executions with `rows` rows."""
        before = self._statistics(plan)
        try:
            self._client.infer(plan.model, inputs, plan.version, client_timeout=_INFER_TIMEOUT_S)
        except InferenceServerException as error:
            remedy = "name sizes that it takes with --batch"
            raise ProfileError(f"model {plan.model} with {rows} rows: {error.message()}; {remedy}") from error
        counted_by_s = time.monotonic() + _COUNTED_WITHIN_S
        while True:
            grown = _growth(before, self._statistics(plan))
            if rows in grown:
                if len(grown) > 1 or grown[rows][0] > 1:
                    self.shared.add(plan.model)
                return grown[rows]
            if time.monotonic() > counted_by_s:
                raise ProfileError(_not_counted(plan.model, rows, grown))

    def _statistics(self, plan: _Plan) -> dict[int, Seconds]:
        """Of all executions so far, by rows."""
        try:
            answer = self._client.get_inference_statistics(plan.model, plan.version, client_timeout=_CALL_TIMEOUT_S)
        except InferenceServerException as error:
            remedy = "run a server that was built with statistics, and has them on"
            raise ProfileError(f"model {plan.model}: no statistics: {error.message()}; {remedy}") from error
        (statistics,) = answer.model_stats
        return {
            batch.batch_size: (
                batch.compute_infer.count,
                (batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns) * 1e-9,
                batch.compute_input.ns * 1e-9,
            )
            for batch in statistics.batch_stats
        }


@dataclass(frozen=True, slots=True)
class _Plan:
    model: str
    version: str
    max_batch_size: int
    """As configured; 0: it does not batch."""
    instances: int
    batches: Mapping[int, list[triton.InferInput]]


def _nanoseconds(seconds: float) -> float:
    return round(float(seconds), 9)


def _not_measurable(config: Any) -> str:
    """Why a model with this configuration cannot be measured by single requests; empty: it can."""
    if config.HasField("ensemble_scheduling"):
        return "is an ensemble, which executes nothing itself: profile the models that it consists of"
    if config.HasField("sequence_batching"):
        return "serves sequences, whose requests cannot stand alone: leave it out"
    if config.model_transaction_policy.decoupled:
        return "is decoupled, so a request has no single answer: leave it out"
    if config.response_cache.enable:
        return "answers from its response cache, without executing: profile it with response_cache off"
    return ""


def _sizes(model: str, sweep: Sweep, config: Any) -> tuple[int, ...]:
    largest = config.max_batch_size or 1
    if not sweep.batches:
        return (*(2**power for power in range((largest - 1).bit_length())), largest)
    if max(sweep.batches) > largest:
        rule = f"takes at most {largest} rows" if config.max_batch_size else "does not batch (max_batch_size 0)"
        raise ProfileError(f"model {model} {rule}, and --batch asks for {max(sweep.batches)}: give at most {largest}")
    return tuple(sorted(set(sweep.batches)))


def _inputs(model: str, declared: Sequence[InputShape], rows: int, config: Any) -> list[triton.InferInput]:
    try:
        arrays = tensors(declared, rows, config.max_batch_size, np.random.default_rng(0))
    except ValueError as error:
        raise ProfileError(f"model {model}: {error}") from error
    inputs = []
    for one, array in zip(declared, arrays, strict=True):
        inputs.append(triton.InferInput(one.name, list(array.shape), one.datatype))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def _growth(before: Mapping[int, Seconds], after: Mapping[int, Seconds]) -> dict[int, Seconds]:
    grown = {}
    for rows, (executions, total_s, input_s) in after.items():
        executions_before, total_before_s, input_before_s = before.get(rows, (0, 0.0, 0.0))
        if executions > executions_before:
            grown[rows] = (executions - executions_before, total_s - total_before_s, input_s - input_before_s)
    return grown


def _not_counted(model: str, rows: int, grown: Mapping[int, Seconds]) -> str:
    if grown:
        sizes = ", ".join(map(str, sorted(grown)))
        return (
            f"model {model}: a request of {rows} rows was executed in a batch of {sizes}: other clients send to it; "
            "profile it while nobody else does"
        )
    return f"model {model}: the server answered {rows} rows and counted no execution; have its statistics on"
