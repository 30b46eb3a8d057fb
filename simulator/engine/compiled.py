"""Functions of the core that the engine calls, compiled from their own source, see `balancer.native.compiling`."""

from __future__ import annotations

import math
import pathlib
from collections import namedtuple
from dataclasses import fields

from balancer.core.estimators import latency, queue, service, tokens
from balancer.native.compiling import compiled, from_source, inlined, keep_in_cache, outlined
from policies import hashing

__all__ = [
    "LatencyArrays",
    "QueueArrays",
    "ServiceArrays",
    "TokenArrays",
    "batch_work_s",
    "compiled",
    "exponential",
    "from_source",
    "inlined",
    "mix",
    "outlined",
    "queue_reported",
    "rows_per_request",
    "unit",
]

_HERE = pathlib.Path(__file__).parent
keep_in_cache(_HERE, _HERE.with_name("envs"))

# mypy wants the names of the fields spelled out; they are the core's.
QueueArrays = namedtuple("QueueArrays", [f.name for f in fields(queue.Queue)])  # type: ignore[misc]
ServiceArrays = namedtuple("ServiceArrays", [f.name for f in fields(service.Service)])  # type: ignore[misc]
LatencyArrays = namedtuple("LatencyArrays", [f.name for f in fields(latency.Latency)])  # type: ignore[misc]
TokenArrays = namedtuple("TokenArrays", [f.name for f in fields(tokens.Tokens)])  # type: ignore[misc]

queue_reported = from_source(queue.reported)
batch_work_s, rows_per_request = from_source(queue.batch_work_s), from_source(queue.rows_per_request)
mix, unit = from_source(hashing.mix_array), from_source(hashing.unit_array)


@inlined
def exponential(mean: float, uniform: float) -> float:
    """An exponential draw from a uniform one."""
    return -mean * math.log1p(-uniform)
