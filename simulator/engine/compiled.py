"""The core's scalar updates, compiled from their own source: production and simulator run the same code.

numba resolves the names that a function uses when it compiles it, so each function is copied with a namespace in which
its siblings are the compiled ones. State records become native ones of the same arrays (see `native.py`); a row index
then stands for (environment, balancer, worker).
"""

from __future__ import annotations

import hashlib
import math
import pathlib
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
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
        for path in sorted(folder.glob("*.py")):
            content.update(path.read_bytes())
    return content.hexdigest()[:16]


# Read by numba when a function is decorated.
numba.config.CACHE_DIR = str(platformdirs.user_cache_path("balancer") / "engine" / _digest())  # type: ignore[attr-defined]

_njit: Any = numba.njit
# Without numba's reference counts: nothing is allocated in here.
_OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
inlined: Callable[..., Any] = _njit(forceinline=True, **_OPTIONS)
"""For what happens to every request."""
outlined: Callable[..., Any] = _njit(**_OPTIONS)
"""For what is rarer."""
compiled: Callable[..., Any] = _njit(cache=True, nogil=True, **_OPTIONS)
"""For what Python calls."""


@inlined
def _where(condition: bool, x: float, y: float) -> float:
    """`np.where` for single numbers, which numba's own is not for: it allocates."""
    return x if condition else y


_numpy = types.ModuleType("numpy")
_numpy.__dict__.update(vars(np), where=_where)


def _compile_module(module: types.ModuleType, names: tuple[str, ...], **others: Any) -> Iterator[Any]:
    """Those functions of a module, with these compiled ones of `others` that they call."""
    # Numbers that NumPy prefers as arrays of no axis are numbers here.
    numbers = {name: value.item() for name, value in vars(module).items() if isinstance(value, np.ndarray)}
    namespace = vars(module) | numbers | others | {"np": _numpy}
    for name in names:
        source = namespace[name]
        copy = types.FunctionType(source.__code__, namespace, name, source.__defaults__)
        namespace[name] = inlined(copy)
        yield namespace[name]


# mypy wants the names of the fields spelled out; they are the core's.
QueueArrays = namedtuple("QueueArrays", [f.name for f in fields(queue.Queue)])  # type: ignore[misc]
ServiceArrays = namedtuple("ServiceArrays", [f.name for f in fields(service.Service)])  # type: ignore[misc]
LatencyArrays = namedtuple("LatencyArrays", [f.name for f in fields(latency.Latency)])  # type: ignore[misc]
TokenArrays = namedtuple("TokenArrays", [f.name for f in fields(tokens.Tokens)])  # type: ignore[misc]
TokenLimits = namedtuple("TokenLimits", ["capacity", "refill_per_s", "target_pending"])

service_fit, service_observe, alone_s, forget, known_s, unknown_s, set_prior = _compile_module(
    service, ("fit", "observe", "alone_s", "forget", "known_s", "unknown_s", "set_prior")
)
batch_work_s, rows_per_request, recount, recount_worker, drain, queue_sent, queue_ended, queue_reported = (
    _compile_module(
        queue,
        ("batch_work_s", "rows_per_request", "recount", "recount_worker", "_drain", "sent", "ended", "reported"),
    )
)
others_left, pending_now, backlog_now_s, completion_now_s = _compile_module(
    queue, ("others_left", "pending_now", "backlog_now_s", "completion_now_s"), alone_s=alone_s
)
latency_observe, latency_now_s, error_rate_now = _compile_module(
    latency, ("observe", "latency_now_s", "error_rate_now")
)
tokens_advance, tokens_take, level_now = _compile_module(tokens, ("advance", "take", "level_now"))


@inlined
def mix(value: Any) -> Any:
    """`policies.hashing.mix` for uint64, which wraps by itself."""
    value = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@inlined
def unit(value: Any) -> Any:
    """`policies.hashing.unit`."""
    return np.float64(value >> np.uint64(11)) * 2.0**-53


@inlined
def exponential(mean: float, uniform: float) -> float:
    """An exponential draw from a uniform one."""
    return -mean * math.log1p(-uniform)
