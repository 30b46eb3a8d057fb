"""Service time by worker, model and batch size, learned online from the batches that Triton executed.

Modelled as affine, `seconds(rows) = fixed_s + per_row_s * rows`, which measured GPU tables follow closely between batch
1 and the largest; fitted by least squares with exponential forgetting, so a slowed GPU is noticed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from balancer.core.columns import FloatArray, per_model

# With one batch size seen the slope cannot be told from the offset. GPUs batch well, so most of a small batch's time
# is fixed: this share of the mean time is taken to grow with the rows until a second size is seen.
_PRIOR_ROW_SHARE = 0.3
# Weight of that prior, in rows squared of variance: gone once batch sizes differ by more than about one row.
_PRIOR_VARIANCE = 0.25


@dataclass
class Service:
    """Forgetting sums of the fit, and the fit; `(..., n, m)`."""

    weight: FloatArray = per_model()
    rows: FloatArray = per_model()
    rows_squared: FloatArray = per_model()
    seconds: FloatArray = per_model()
    rows_seconds: FloatArray = per_model()
    fixed_s: FloatArray = per_model(float("nan"))
    """Seconds that an execution takes whatever its size; NaN until measured or borrowed."""
    per_row_s: FloatArray = per_model(float("nan"))
    """Seconds that each row adds."""
    max_batch_rows: FloatArray = per_model(1.0)
    instances: FloatArray = per_model(1.0)


def observe(s: Service, w: int, m: int, rows: float, executions: float, seconds: float, memory: float) -> None:
    """Learn that `executions` batches of `rows` rows took `seconds` in all on worker `w` with model `m`."""
    keep = math.exp(-executions / memory)
    # The executions of one observation fade among themselves too, so that a thousand at once weigh no more than memory.
    gain = memory * (1 - keep)
    time_s = seconds / executions
    s.weight[w, m] = s.weight[w, m] * keep + gain
    s.rows[w, m] = s.rows[w, m] * keep + gain * rows
    s.rows_squared[w, m] = s.rows_squared[w, m] * keep + gain * rows * rows
    s.seconds[w, m] = s.seconds[w, m] * keep + gain * time_s
    s.rows_seconds[w, m] = s.rows_seconds[w, m] * keep + gain * time_s * rows
    weight = s.weight[w, m]
    mean_rows = s.rows[w, m] / weight
    mean_s = s.seconds[w, m] / weight
    variance = max(s.rows_squared[w, m] / weight - mean_rows * mean_rows, 0.0)
    covariance = s.rows_seconds[w, m] / weight - mean_rows * mean_s
    prior = _PRIOR_ROW_SHARE * mean_s / mean_rows
    slope = (covariance + _PRIOR_VARIANCE * prior) / (variance + _PRIOR_VARIANCE)
    slope = min(max(slope, 0.0), mean_s / mean_rows)
    s.per_row_s[w, m] = slope
    s.fixed_s[w, m] = mean_s - slope * mean_rows


def borrow(s: Service, w: int, m: int, default_s: float) -> None:
    """Fill an unmeasured worker and model with the mean of the workers that know the model, else with `default_s`."""
    known = np.isfinite(s.fixed_s[:, m]) & (s.weight[:, m] > 0)
    if known.any():
        s.fixed_s[w, m] = s.fixed_s[known, m].mean()
        s.per_row_s[w, m] = s.per_row_s[known, m].mean()
    else:
        s.fixed_s[w, m] = default_s * (1 - _PRIOR_ROW_SHARE)
        s.per_row_s[w, m] = default_s * _PRIOR_ROW_SHARE
