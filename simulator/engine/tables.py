"""Service times by rows, as the engine and its reference look them up."""

from __future__ import annotations

import numpy as np

from policies.base import FloatArray
from simulator.spec import ServiceTime


def service_table(service: ServiceTime, most_rows: int) -> tuple[FloatArray, FloatArray]:
    """Seconds on the device and on the host for 0 to `most_rows` rows; `(most_rows + 1,)` each, indexed by rows."""
    host_s = service.host_s or (0.0,) * len(service.rows)
    return _line(service.rows, service.device_s, most_rows), _line(service.rows, host_s, most_rows)


def _line(rows: tuple[int, ...], seconds: tuple[float, ...], most_rows: int) -> FloatArray:
    """Straight lines between the points; flat below the first; the last line goes on beyond the last."""
    wanted = np.arange(most_rows + 1, dtype=np.float64)
    table: FloatArray = np.interp(wanted, rows, seconds)
    if len(rows) > 1:
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        beyond = wanted > rows[-1]
        table[beyond] = seconds[-1] + slope * (wanted[beyond] - rows[-1])
    return table
