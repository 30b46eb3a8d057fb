"""Estimator state as named arrays: one row a worker, and where it matters one column a model.

State is a dataclass whose fields are arrays of shape `(..., n)` or `(..., n, m)`. Production holds one fleet and lets
rows come and go (`balancer.kernel.fleet_state`); the simulator allocates `(environments, n, m)` once and passes
`state[environment]` views to the same update functions, which touch one element at a time and so compile as they are.
"""

import dataclasses
import math
from types import EllipsisType
from typing import Any

import numpy as np

At = int | tuple[Any, ...] | EllipsisType
"""One worker, one worker and model, or all of them: what is written element by element holds for each alike."""


def exp(x: Any) -> Any:
    """e to the x, element by element: for one fleet by the C library, so that compiled code has the same bits.

    NumPy's own may differ in the last one, by processor. It is taken for many fleets at once, where it is far faster.
    """
    if np.ndim(x) > 1:
        return np.exp(x)
    return np.array([math.exp(one) for one in x.tolist()]) if np.ndim(x) else math.exp(x)


def along(axes: str, kind: type[Any] = float, fill: float = 0.0) -> Any:
    """Declare an array of a state by its axes, see `Fields`."""
    return dataclasses.field(metadata={"axes": axes, "kind": kind, "fill": fill})


def per_worker(fill: float = 0.0) -> Any:
    """Declare an array of shape `(..., n)`; a new worker starts at `fill`."""
    return along("r", fill=fill)


def per_model(fill: float = 0.0) -> Any:
    """Declare an array of shape `(..., n, m)`; a new worker or model starts at `fill`."""
    return along("r m", fill=fill)


Fields = dict[str, tuple[str, type, Any]]
"""Arrays of a record, declared: their axes, type, and value at the start. One letter of an axis has one meaning
everywhere: `e` a fleet, `f` a fleet as one balancer knows it, `n` its workers, `r` workers as one balancer knows them,
`m` models."""


def array(axes: str, kind: type[Any] = float, start: Any = 0) -> Any:
    """Declare an array of a `NamedTuple`, whose `_field_defaults` are the `Fields`."""
    return axes, kind, start


def declared(kind: type[Any]) -> Fields:
    """The arrays of a named tuple of such, or of a state."""
    if issubclass(kind, tuple):
        found: Fields = vars(kind)["_field_defaults"]
        return found
    return {f.name: (f.metadata["axes"], f.metadata["kind"], f.metadata["fill"]) for f in dataclasses.fields(kind)}


def clear_model(state: Any, model: int) -> None:
    """Set a column of every per-model array back to its fill value."""
    for f in dataclasses.fields(state):
        if f.metadata["axes"].endswith(" m"):
            getattr(state, f.name)[..., model] = f.metadata["fill"]
