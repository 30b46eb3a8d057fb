"""A fleet given as arrays: what was recorded, measured or made up, as policies see it."""

from __future__ import annotations

import dataclasses

from policies.base import BoolArray, FloatArray, UintArray


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Implements `policies.base.FleetView` with these arrays, all of one shape `(..., n)`."""

    eligible: BoolArray
    weight: FloatArray
    name_hash: UintArray
    in_flight: FloatArray
    reported_pending: FloatArray
    pending: FloatArray
    backlog_s: FloatArray
    completion_s: FloatArray
    service_s: FloatArray
    latency_s: FloatArray
    error_rate: FloatArray
    tokens: FloatArray
    report_age_s: FloatArray


COLUMNS = tuple(field.name for field in dataclasses.fields(Columns) if field.name != "eligible")
"""Names of a view's columns of numbers."""
