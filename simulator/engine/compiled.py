"""Functions of core and policies, compiled from their own source: production and simulator run the same code.

numba resolves the names that a function uses when it compiles it, so each function is copied with a namespace in which
those that it calls are the compiled ones. State records become native ones of the same arrays (see `native.py`); a row
index then stands for (environment, balancer, worker).
"""

from __future__ import annotations

import functools
import hashlib
import math
import pathlib
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numba
import numpy as np
import platformdirs

from balancer.core import latency, queue, service, tokens
from policies import hashing

_SOURCES = (pathlib.Path(__file__).parent, pathlib.Path(queue.__file__).parent, pathlib.Path(hashing.__file__).parent)


def _digest() -> str:
    """Of all that is compiled: numba's own cache looks at the outermost function's file alone."""
    content = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted(folder.rglob("*.py")):
            content.update(path.read_bytes())
    return content.hexdigest()[:16]


# Read by numba when a function is decorated.
numba.config.CACHE_DIR = str(platformdirs.user_cache_path("balancer") / "engine" / _digest())  # type: ignore[attr-defined]

_njit: Any = numba.njit
# Without numba's reference counts: nothing is allocated in here.
OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
inlined: Callable[..., Any] = _njit(forceinline=True, **OPTIONS)
"""For what happens to every request."""
outlined: Callable[..., Any] = _njit(**OPTIONS)
"""For what is rarer."""
compiled: Callable[..., Any] = _njit(cache=True, nogil=True, **OPTIONS)
"""For what Python calls."""


@inlined
def _where(condition: bool, x: float, y: float) -> float:
    """`np.where` for single numbers, which numba's own is not for: it allocates."""
    return x if condition else y


_numpy = types.ModuleType("numpy")
_numpy.__dict__.update(vars(np), where=_where)


@functools.cache
def from_source(function: types.FunctionType) -> Any:
    """A function of policies or core, compiled, with all of theirs that it calls."""
    namespace = dict(function.__globals__)
    for name in function.__code__.co_names:
        value = namespace.get(name)
        if isinstance(value, types.FunctionType) and value.__module__.startswith(("policies.", "balancer.core.")):
            namespace[name] = from_source(value)
        elif isinstance(value, np.ndarray) and not value.ndim:
            # A number that NumPy prefers as an array of no axis.
            namespace[name] = value.item()
        elif value is np:
            namespace[name] = _numpy
    return inlined(types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__))


# mypy wants the names of the fields spelled out; they are the core's.
QueueArrays = namedtuple("QueueArrays", [f.name for f in fields(queue.Queue)])  # type: ignore[misc]
ServiceArrays = namedtuple("ServiceArrays", [f.name for f in fields(service.Service)])  # type: ignore[misc]
LatencyArrays = namedtuple("LatencyArrays", [f.name for f in fields(latency.Latency)])  # type: ignore[misc]
TokenArrays = namedtuple("TokenArrays", [f.name for f in fields(tokens.Tokens)])  # type: ignore[misc]
TokenLimits = namedtuple("TokenLimits", ["capacity", "refill_per_s", "target_pending"])

service_fit, service_observe, alone_s = map(from_source, (service.fit, service.observe, service.alone_s))
forget, known_s, unknown_s, set_prior = map(
    from_source, (service.forget, service.known_s, service.unknown_s, service.set_prior)
)
batch_work_s, rows_per_request = from_source(queue.batch_work_s), from_source(queue.rows_per_request)
recount, recount_worker = from_source(queue.recount), from_source(queue.recount_worker)
queue_sent, queue_ended, queue_reported = map(from_source, (queue.sent, queue.ended, queue.reported))
others_left, pending_now, backlog_now_s, completion_now_s = map(
    from_source, (queue.others_left, queue.pending_now, queue.backlog_now_s, queue.completion_now_s)
)
latency_observe, latency_now_s, error_rate_now = map(
    from_source, (latency.observe, latency.latency_now_s, latency.error_rate_now)
)
tokens_advance, tokens_take, level_now = map(from_source, (tokens.advance, tokens.take, tokens.level_now))
mix, unit, lot_of = map(from_source, (hashing.mix_array, hashing.unit_array, hashing.lot_of))


@inlined
def exponential(mean: float, uniform: float) -> float:
    """An exponential draw from a uniform one."""
    return -mean * math.log1p(-uniform)
