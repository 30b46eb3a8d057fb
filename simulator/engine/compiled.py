"""Functions of the core that the engine calls, compiled from their own source, see `balancer.native.compiling`."""

from __future__ import annotations

import math
import pathlib

from balancer.core.estimators import queue
from balancer.native.compiling import compiled, from_source, inlined, keep_in_cache, outlined
from policies import hashing

__all__ = [
    "compiled",
    "exponential",
    "from_source",
    "inlined",
    "mix",
    "outlined",
    "queue_reported",
    "rows_per_request",
    "take_lying",
    "unit",
]

_HERE = pathlib.Path(__file__).parent
keep_in_cache(_HERE, _HERE.with_name("envs"))

queue_reported = from_source(queue.reported)
take_lying, rows_per_request = from_source(queue.take_lying), from_source(queue.rows_per_request)
mix, unit = from_source(hashing.mix_array), from_source(hashing.unit_array)


@inlined
def exponential(mean: float, uniform: float) -> float:
    """An exponential draw from a uniform one."""
    return -mean * math.log1p(-uniform)
