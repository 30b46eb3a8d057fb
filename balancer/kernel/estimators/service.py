"""Service time by worker, model and batch size, learned online from the batches that Triton executed.

Modelled as affine, `seconds(rows) = fixed_s + per_row_s * rows`, which measured GPU tables follow closely between batch
1 and the largest; fitted by least squares with exponential forgetting, so a slowed GPU is noticed.

What is known of a worker fades, with executions and with time, towards a prior: the profile measured of its device
with the model, or without one what workers of the same kind of device executed, or where they executed nothing the
fastest worker that is well known for the model. So a newcomer, or one that was slow once, is tried again before long
rather than avoided for ever; and one that differs from its like is told apart by its own executions.
"""

import math
from dataclasses import dataclass

import numpy as np

from balancer.kernel.estimators.columns import At, per_model
from policies.base import FloatArray

# With one batch size seen the slope cannot be told from the offset. GPUs batch well, so most of a small batch's time
# is fixed: this share of the mean time is taken to grow with the rows until a second size is seen.
ROW_SHARE = 0.3
# Weight of that assumption, in rows squared of variance: gone once batch sizes differ by more than about one row.
_ROW_SHARE_VARIANCE = 0.25
# How many executions the prior counts for, at least.
PRIOR_EXECUTIONS = 2.0
# How many executions make a worker known well enough to be a prior for those of other kinds.
WELL_KNOWN = 5.0
# Triton's compute time includes waiting for a device that another execution occupies. Where that wait is not known, it
# errs on the long side, and what is shorter than expected is nearer to the truth: a longer time has this much weight.
_LONGER_WEIGHT = 0.25


@dataclass
class Service:
    """Forgetting sums of the fit, and the fit; `(..., n, m)`."""

    weight: FloatArray = per_model()
    rows: FloatArray = per_model()
    rows_squared: FloatArray = per_model()
    seconds: FloatArray = per_model()
    rows_seconds: FloatArray = per_model()
    profile_fixed_s: FloatArray = per_model(np.nan)
    """What was measured beforehand of the worker's device with the model; not a number: nothing."""
    profile_per_row_s: FloatArray = per_model(np.nan)
    prior_fixed_s: FloatArray = per_model()
    prior_per_row_s: FloatArray = per_model()
    prior_executions: FloatArray = per_model(PRIOR_EXECUTIONS)
    """For how many it counts."""
    fixed_s: FloatArray = per_model()
    """Seconds that an execution takes whatever its size."""
    per_row_s: FloatArray = per_model()
    """Seconds that each row adds."""
    max_batch_rows: FloatArray = per_model(1.0)
    instances: FloatArray = per_model(1.0)
    parallel: FloatArray = per_model(1.0)
    """Executions that take `fixed_s` and `per_row_s` together: 1 where those are seconds of the device alone, else all
    instances, each of which waits for the device while the others have it."""


def observe(
    s: Service, w: int, m: int, rows: float, executions: float, seconds: float, memory: float, waited: bool
) -> None:
    """Learn that `executions` batches of `rows` rows took `seconds` in all on worker `w` with model `m`.

    `waited`: times at which they waited for the device may be among them.
    """
    keep = math.exp(-executions / memory)
    time_s = seconds / executions
    # The executions of one observation fade among themselves too, so that a thousand at once weigh no more than memory.
    gain = memory * (1 - keep)
    if waited and time_s > batch_s(s, w, m, rows):
        gain *= _LONGER_WEIGHT
    s.weight[w, m] = s.weight[w, m] * keep + gain
    s.rows[w, m] = s.rows[w, m] * keep + gain * rows
    s.rows_squared[w, m] = s.rows_squared[w, m] * keep + gain * rows * rows
    s.seconds[w, m] = s.seconds[w, m] * keep + gain * time_s
    s.rows_seconds[w, m] = s.rows_seconds[w, m] * keep + gain * time_s * rows
    fit(s, w, m)


def batch_s(s: Service, w: int, m: int, rows: float) -> float:
    """Seconds that one batch is expected to take."""
    return float(s.fixed_s[w, m] + s.per_row_s[w, m] * rows)


def fit(s: Service, r: int, m: int) -> None:
    """Bring `fixed_s` and `per_row_s` up to date with the sums and the prior."""
    s.fixed_s[r, m], s.per_row_s[r, m] = line_of(
        s.weight[r, m],
        s.rows[r, m],
        s.rows_squared[r, m],
        s.seconds[r, m],
        s.rows_seconds[r, m],
        s.prior_fixed_s[r, m],
        s.prior_per_row_s[r, m],
        s.prior_executions[r, m],
    )


def line_of(
    weight: float,
    rows: float,
    rows_squared: float,
    seconds: float,
    rows_seconds: float,
    prior_fixed_s: float,
    prior_per_row_s: float,
    prior_executions: float,
) -> tuple[float, float]:
    """The line through what these sums are of, seconds at no row and for each row, drawn to the prior's, which counts
    for so many executions."""
    some = max(weight, 1e-9)
    mean_rows = max(rows / some, 1e-9)
    mean_s = seconds / some
    variance = max(rows_squared / some - mean_rows * mean_rows, 0.0)
    covariance = rows_seconds / some - mean_rows * mean_s
    assumed = ROW_SHARE * mean_s / mean_rows
    slope = (covariance + _ROW_SHARE_VARIANCE * assumed) / (variance + _ROW_SHARE_VARIANCE)
    slope = min(max(slope, 0.0), mean_s / mean_rows)
    trust = weight / (weight + prior_executions)
    fixed_s = trust * (mean_s - slope * mean_rows) + (1 - trust) * prior_fixed_s
    return fixed_s, trust * slope + (1 - trust) * prior_per_row_s


def alone_s(s: Service, at: At, rows: float | FloatArray) -> FloatArray:
    """Seconds of service for `rows` rows, in full batches one after the other."""
    return s.fixed_s[at] * np.ceil(rows / s.max_batch_rows[at]) + s.per_row_s[at] * rows


def fade(
    s: Service,
    kind: FloatArray,
    first: int,
    workers: int,
    share: float,
    default_s: float,
    most_prior: float = PRIOR_EXECUTIONS,
) -> None:
    """Forget `share` (0 to 1) of what was observed, renew the priors, and fit all anew; for rows of one fleet.

    The `workers` rows from `first` on are one fleet; `kind` is the number of each row's kind of device. The prior of a
    worker is its profile; without one, what the others of its kind executed; the less they did, the more the fastest
    worker that is well known; where none is, a batch of one row that takes `default_s`. What others of its kind
    executed counts for as many executions as they were, at most `most_prior`.
    """
    kinds = 0
    for r in range(first, first + workers):
        kinds = max(kinds, int(kind[r]) + 1)
    for m in range(s.weight.shape[1]):
        fixed_s, per_row_s, least_s = default_s * (1 - ROW_SHARE), default_s * ROW_SHARE, np.inf
        for r in range(first, first + workers):
            s.weight[r, m] *= 1 - share
            s.rows[r, m] *= 1 - share
            s.rows_squared[r, m] *= 1 - share
            s.seconds[r, m] *= 1 - share
            s.rows_seconds[r, m] *= 1 - share
            if s.weight[r, m] >= WELL_KNOWN and s.fixed_s[r, m] + s.per_row_s[r, m] < least_s:
                fixed_s, per_row_s = s.fixed_s[r, m], s.per_row_s[r, m]
                least_s = fixed_s + per_row_s
        for one in range(kinds):
            _learn_of_like_workers(s, kind, one, first, workers, m, fixed_s, per_row_s, most_prior)
        for r in range(first, first + workers):
            if not math.isnan(s.profile_fixed_s[r, m]):
                s.prior_fixed_s[r, m], s.prior_per_row_s[r, m] = s.profile_fixed_s[r, m], s.profile_per_row_s[r, m]
                s.prior_executions[r, m] = PRIOR_EXECUTIONS
            fit(s, r, m)


def _learn_of_like_workers(
    s: Service,
    kind: FloatArray,
    one: int,
    first: int,
    workers: int,
    m: int,
    fixed_s: float,
    per_row_s: float,
    most_prior: float,
) -> None:
    """Make the prior of each worker of kind `one` of what the others of it executed; `fixed_s`, `per_row_s`: of other
    kinds, as far as that is little."""
    weight, rows, rows_squared, seconds, rows_seconds = 0.0, 0.0, 0.0, 0.0, 0.0
    for r in range(first, first + workers):
        if kind[r] == one:
            weight += s.weight[r, m]
            rows += s.rows[r, m]
            rows_squared += s.rows_squared[r, m]
            seconds += s.seconds[r, m]
            rows_seconds += s.rows_seconds[r, m]
    for r in range(first, first + workers):
        if kind[r] == one:
            # No less than nothing, as rounding could have it.
            others = max(weight - s.weight[r, m], 0.0)
            s.prior_executions[r, m] = min(max(others, PRIOR_EXECUTIONS), most_prior)
            s.prior_fixed_s[r, m], s.prior_per_row_s[r, m] = line_of(
                others,
                max(rows - s.rows[r, m], 0.0),
                max(rows_squared - s.rows_squared[r, m], 0.0),
                max(seconds - s.seconds[r, m], 0.0),
                max(rows_seconds - s.rows_seconds[r, m], 0.0),
                fixed_s,
                per_row_s,
                PRIOR_EXECUTIONS,
            )
