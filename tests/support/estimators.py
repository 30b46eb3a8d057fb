"""States of estimators without a fleet, for tests of their rules."""

import dataclasses
from typing import Any, TypeVar

import numpy as np

from balancer.kernel.state import lengths_of

State = TypeVar("State")


def allocate(kind: type[State], workers: int, models: int, batch: tuple[int, ...] = ()) -> State:
    """A state of `workers` rows and `models` columns behind the leading axes `batch`, all at their start values."""
    fields: Any = dataclasses.fields(kind)  # type: ignore[arg-type]  # every State is a dataclass; TypeVar cannot say so
    lengths = {**lengths_of(workers, models), "f": 1}
    arrays = {
        f.name: np.full(
            (*batch, *(lengths[axis] for axis in f.metadata["axes"].split())), f.metadata["fill"], f.metadata["kind"]
        )
        for f in fields
    }
    return kind(**arrays)
