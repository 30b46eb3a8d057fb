"""The columns of a view, declared once; and a fleet given as such columns.

What is written down, shown or observed of a fleet goes by this declaration: the decision log's columns, `/workers`,
`/explain`, the metrics of workers and the observations of the simulator's environments.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from policies.base import BoolArray, FleetView, FloatArray, UintArray
from policies.choices import SCRATCH

Unit = Literal["requests", "tokens", "s", "share", "1"]
Of = Literal["identity", "worker", "moment", "request"]
"""What a column changes with: seldom, all the time, or from one request to the next as well. Identities say who it is,
and are no quantities."""


def column(unit: Unit, of: Of) -> Any:
    return dataclasses.field(metadata={"unit": unit, "of": of})


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Implements `policies.base.FleetView`, which says what each is, with these arrays, all of one shape `(..., n)`."""

    eligible: BoolArray
    weight: FloatArray = column("1", of="worker")
    name_hash: UintArray = column("1", of="identity")
    identity: FloatArray = column("1", of="identity")
    kind_identity: FloatArray = column("1", of="identity")
    in_flight: FloatArray = column("requests", of="moment")
    reported_pending: FloatArray = column("requests", of="moment")
    pending: FloatArray = column("requests", of="moment")
    backlog_s: FloatArray = column("s", of="moment")
    completion_s: FloatArray = column("s", of="request")
    service_s: FloatArray = column("s", of="request")
    latency_s: FloatArray = column("s", of="moment")
    error_rate: FloatArray = column("share", of="moment")
    tokens: FloatArray = column("tokens", of="moment")
    report_age_s: FloatArray = column("s", of="moment")
    cached: FloatArray = column("share", of="request")
    saving_s: FloatArray = column("s", of="request")
    pending_other_models: FloatArray = column("requests", of="request")
    work_behind_s: FloatArray = column("s", of="request")
    matched_tokens: FloatArray = column("tokens", of="request")
    waiting_tokens: FloatArray = column("tokens", of="moment")
    cached_tokens: FloatArray = column("tokens", of="request")
    held_tokens: FloatArray = column("tokens", of="request")
    memory_tokens: FloatArray = column("tokens", of="request")
    first_token_s: FloatArray = column("s", of="request")
    prompt_s: FloatArray = column("s", of="request")
    slowdown_s: FloatArray = column("s", of="request")


class Declared(NamedTuple):
    unit: Unit
    of: Of
    says: str


DECLARED = {
    field.name: Declared(**field.metadata, says=getattr(FleetView, field.name).__doc__)
    for field in dataclasses.fields(Columns)
    if field.name != "eligible"
}
COLUMNS = tuple(DECLARED)
QUANTITIES = tuple(name for name in COLUMNS if DECLARED[name].of != "identity")
"""Those that mean something to people."""


def columns_of(*of: Of) -> tuple[str, ...]:
    """Names of the quantities that change with these, in order."""
    return tuple(name for name in QUANTITIES if DECLARED[name].of in of)


class Rows:
    """In Python. Whoever has a compiler overrides both, for the same bits in less time."""

    def shares(
        self, fill: Callable[..., int], cost: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        """What a choice's `fill` writes, `(..., n)`."""
        shares = np.empty(eligible.shape)
        n = eligible.shape[-1]
        for row in np.ndindex(eligible.shape[:-1]):
            # Lists: Python reads a number of an array ten times as slowly.
            line = [0.0] * n
            fill(cost[row].tolist(), eligible[row].tolist(), option, [0.0] * (SCRATCH * n), line)
            shares[row] = line
        return shares

    def fact(
        self, of_one: Callable[..., float], column: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        """What a fact's `of_one` finds, `(..., 1)`."""
        found = np.empty((*eligible.shape[:-1], 1))
        n = eligible.shape[-1]
        for row in np.ndindex(eligible.shape[:-1]):
            found[row] = of_one(column[row].tolist(), eligible[row].tolist(), option, [0.0] * n)
        return found


IN_PYTHON = Rows()
