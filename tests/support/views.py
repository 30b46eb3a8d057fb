"""A fake fleet for policies: plain columns, of which a test states those it is about."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from policies.base import Policy, Request
from policies.columns import Columns
from policies.hashing import mix


class FakeView(Columns):
    """Given, read-only arrays of one shape `(..., n)`."""

    def map(self, change: npt.ArrayLike) -> FakeView:
        """The view with its workers in another order: indices into the last axis."""
        return FakeView(**{name: _frozen(column[..., change]) for name, column in self.columns().items()})

    def row(self, *index: int) -> FakeView:
        """One view of a batch."""
        return FakeView(**{name: _frozen(column[index]) for name, column in self.columns().items()})

    def columns(self) -> dict[str, np.ndarray]:
        """All arrays by name, not copied."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


_DEFAULTS: dict[str, object] = {
    "eligible": True,
    "weight": 1.0,
    "identity": -1.0,
    "kind_identity": -1.0,
    "in_flight": 0.0,
    "pending": 0.0,
    "service_s": 0.01,
    "latency_s": 0.0,
    "error_rate": 0.0,
    "tokens": 32.0,
    "report_age_s": 0.0,
    "cached": 0.0,
    "saving_s": 0.0,
    "pending_other_models": 0.0,
    "work_behind_s": 0.0,
    "matched_tokens": 0.0,
    "waiting_tokens": 0.0,
    "cached_tokens": 0.0,
    "held_tokens": 0.0,
    "memory_tokens": 0.0,
    **{"first_token_s": 0.0, "prompt_s": 0.0, "slowdown_s": 0.0},
}


def make_view(n: int | None = None, /, *, leading: tuple[int, ...] = (), **columns: npt.ArrayLike) -> FakeView:
    """A view of an idle, healthy, homogeneous fleet, but for the columns that are given.

    Args:
        n: Workers; None: as many as the given columns have.
        leading: Batch axes in front of the workers; given columns broadcast to them.
        columns: Any of FleetView's. Left out: `reported_pending` as `pending`, `backlog_s` as that many services,
            `completion_s` one service more, `name_hash` from the place in the fleet.
    """
    given = {name: np.asarray(column) for name, column in columns.items()}
    if n is None:
        n = max((column.shape[-1] for column in given.values() if column.ndim), default=0)
    shape = np.broadcast_shapes((*leading, n), *(column.shape for column in given.values()))
    values: dict[str, npt.ArrayLike] = {**_DEFAULTS, **given}  # type: ignore[dict-item]  # object holds only scalars
    values.setdefault("reported_pending", values["pending"])
    with np.errstate(invalid="ignore"):  # a test may give infinite pending of no service time
        values.setdefault("backlog_s", np.asarray(values["pending"]) * np.asarray(values["service_s"]))
    values.setdefault("completion_s", np.asarray(values["backlog_s"]) + np.asarray(values["service_s"]))
    values.setdefault("name_hash", np.array([mix(place) for place in range(n)], np.uint64))
    kinds = {"eligible": np.bool_, "name_hash": np.uint64}
    return FakeView(
        **{
            name: _frozen(np.broadcast_to(np.asarray(value, kinds.get(name, np.float64)), shape))
            for name, value in values.items()
        }
    )


def probabilities(policy: Policy, view: FakeView, request: Request | None = None) -> list[float]:
    """What the policy gives each worker of a single view, as a list, for exact comparison."""
    result = policy.probabilities(request or Request(model="m"), view)
    return [float(probability) for probability in result]


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array).reshape(array.shape)
    array.flags.writeable = False
    return array
