"""Functions of the kernel that the engine calls, compiled from their own source, see `kernel.compiled`."""

import math
import pathlib

from balancer.kernel.compiled.numba_functions import compiled, from_source, inlined, keep_in_cache, outlined, uncached
from balancer.kernel.estimators import queue
from balancer.scheduler import holding
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
    "uncached",
    "unit",
]

_HERE = pathlib.Path(__file__).parent
keep_in_cache(_HERE, _HERE.with_name("envs"), pathlib.Path(*holding.__path__))

queue_reported = from_source(queue.reported)
take_lying, rows_per_request = from_source(queue.take_lying), from_source(queue.rows_per_request)
mix, unit = from_source(hashing.mix_array), from_source(hashing.unit_array)


@inlined
def exponential(mean: float, uniform: float) -> float:
    return -mean * math.log1p(-uniform)
