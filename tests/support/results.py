"""Made-up results of simulations, for tests of what reads them: no engine has run."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.result import Result


def make_result(latency_s: Any, **fields: Any) -> Result:
    """All requests OK, one second apart, answered by worker 0, model 0, no deadline; `fields` replace columns."""
    latency_s = np.atleast_2d(np.asarray(latency_s, float))
    shape = latency_s.shape
    environments, workers = shape[0], fields.get("workers", ("w0", "w1"))
    arrival_s = np.broadcast_to(np.arange(shape[1], dtype=float), shape)
    columns: dict[str, Any] = {
        "arrival_s": arrival_s,
        "latency_s": latency_s,
        "status": np.zeros(shape, np.int8),
        "worker": np.zeros(shape, np.int16),
        "picked": np.zeros(shape, np.int16),
        "attempts": np.ones(shape, np.int8),
        "model": np.zeros(shape, np.int16),
        "rows": np.ones(shape, np.int32),
        "deadline_s": np.full(shape, np.inf),
        "priority": np.zeros(shape, np.int16),
        "tenant": np.zeros(shape, np.int16),
        "pending_integral_s": np.nansum(latency_s, axis=1),
        "end_s": np.nanmax(arrival_s + latency_s, axis=1),
        "busy_s": np.ones((environments, len(workers))),
        "executions": np.ones((environments, len(workers)), np.int64),
        "timeline_s": np.zeros(0),
        "timeline_pending": np.zeros((environments, 0, len(workers))),
        "workers": workers,
        "models": ("m",),
    }
    return Result(**(columns | fields))
