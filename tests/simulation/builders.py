"""Short ways to say small fleets and their requests."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.arrivals import Arrivals, Extras, Prompts
from simulator.spec import BatchingSpec, FleetSpec, ModelSpec, NetworkSpec, Reports, ServiceTime, SimulatedWorker


def arrivals_of(
    time_s: Sequence[float],
    *,
    model: int | Sequence[int] = 0,
    rows: int | Sequence[int] = 1,
    work: float | Sequence[float] = 1.0,
    key: int | Sequence[int] = 0,
    deadline_s: float | Sequence[float] = np.inf,
    priority: int | Sequence[int] = 0,
    balancer: int | Sequence[int] = 0,
    tenant: int | Sequence[int] = 0,
    clients: int = 0,
    sequence: int | Sequence[int] = -1,
    starts: bool | Sequence[bool] = False,
    responses: int | Sequence[int] = 0,
    first_share: float | Sequence[float] = 1.0,
    patience_s: float | Sequence[float] = np.inf,
) -> Arrivals:
    """One value for all requests, or one for each."""

    def column(values: Any, dtype: Any) -> Any:
        return np.broadcast_to(np.asarray(values, dtype), (len(time_s),)).copy()

    return Arrivals(
        time_s=np.asarray(time_s, float),
        model=column(model, np.int16),
        rows=column(rows, np.int32),
        work=column(work, float),
        key=column(key, np.uint64),
        deadline_s=column(deadline_s, float),
        priority=column(priority, np.int16),
        balancer=column(balancer, np.int16),
        tenant=column(tenant, np.int16),
        extras=Extras(
            column(sequence, np.int32),
            column(starts, bool),
            column(responses, np.int32),
            column(first_share, float),
            column(patience_s, float),
        ),
        clients=clients,
    )


def prompting(
    arrivals: Arrivals,
    tokens: int | Sequence[int],
    output: int | Sequence[int] = 1,
    blocks: Sequence[Sequence[int]] | None = None,
    block_tokens: int = 4,
) -> Arrivals:
    """The same with prompts, which begin with these blocks."""
    count = len(arrivals)
    begins = blocks or [()] * count
    return dataclasses.replace(
        arrivals,
        prompts=Prompts(
            np.broadcast_to(np.asarray(tokens, np.int32), count).copy(),
            np.broadcast_to(np.asarray(output, np.int32), count).copy(),
            np.array([len(one) for one in begins], np.int32),
            block_tokens,
            np.array([block for one in begins for block in one], np.int64),
        ),
    )


def model_of(*device_s: float, name: str = "m", host_s: tuple[float, ...] = (), **fields: Any) -> ModelSpec:
    """A model that takes so many seconds for 1, 2, ... rows; fields of `BatchingSpec` go there."""
    batching = {field: fields.pop(field) for field in list(fields) if field in BatchingSpec.__dataclass_fields__}
    service = ServiceTime(tuple(range(1, len(device_s) + 1)), device_s, host_s)
    return ModelSpec(name, {"*": service}, batching=BatchingSpec(**batching), **fields)


def fleet_of(*models: ModelSpec, workers: int | Sequence[SimulatedWorker] = 1, **fields: Any) -> FleetSpec:
    """Without delays on the way, unless they are given."""
    if isinstance(workers, int):
        workers = [SimulatedWorker(f"w{w}") for w in range(workers)]
    no_delays: dict[str, Any] = {"network": NetworkSpec(outcome_s=0.0), "reports": Reports(delay_s=0.0)}
    return FleetSpec(models, tuple(workers), **(no_delays | fields))
