"""The requests of one run: columns of equal length. The same arrivals serve every policy that is compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies.base import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests in order of time, shape `(k,)` each; stack runs with `simulator.batch`."""

    time_s: FloatArray
    """Arrival at the gateway, ascending from 0. In a closed loop: ignored but for the order."""
    model: npt.NDArray[np.int16]
    """Index into `FleetSpec.models`."""
    rows: npt.NDArray[np.int32]
    """Batch size, 1 to the model's `max_batch_rows`; the router sees it."""
    work: npt.NDArray[np.float64]
    """Factor on the request's service time that the router does not see (the tokens it will generate, say); mean 1."""
    key: npt.NDArray[np.uint64]
    """Hash of the routing key; 0: none."""
    deadline_s: FloatArray
    """From arrival; infinite: none."""
    priority: npt.NDArray[np.int16]
    """0: the model's default; 1 the highest."""
    balancer: npt.NDArray[np.int16]
    """Which balancer decides, 0 to `FleetSpec.balancers - 1`."""
    tenant: npt.NDArray[np.int16]
    """Index of the tenant; for reports by tenant."""
    clients: int = 0
    """0: open loop. Else a closed loop of so many clients: the first requests arrive at their times, each next one
    when a client gets its answer."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.time_s)
