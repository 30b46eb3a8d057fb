"""The fleet as policies see it: columns computed when first read, for one request at one moment."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from balancer.core import latency, queue, tokens
from balancer.core.fleet import Fleet
from policies.base import BoolArray, FloatArray, UintArray


class LiveView:
    """Implements `policies.base.FleetView` over a fleet's estimators; arrays have shape `(n,)` and are not copied."""

    def __init__(self, fleet: Fleet, eligible: BoolArray, column: int, rows: float, now_s: float) -> None:
        self._fleet = fleet
        self._column = column
        self._rows = rows
        self._now_s = now_s
        self.eligible = eligible

    @property
    def weight(self) -> FloatArray:
        """See `FleetView`."""
        return self._fleet.weight

    @property
    def name_hash(self) -> UintArray:
        """See `FleetView`."""
        return self._fleet.name_hash

    @property
    def in_flight(self) -> FloatArray:
        """See `FleetView`."""
        return self._fleet.queue.in_flight

    @property
    def reported_pending(self) -> FloatArray:
        """See `FleetView`."""
        return self._fleet.queue.reported_pending

    @cached_property
    def pending(self) -> FloatArray:
        """See `FleetView`."""
        return queue.pending_now(self._fleet.queue, self._now_s)

    @cached_property
    def backlog_s(self) -> FloatArray:
        """See `FleetView`."""
        return queue.backlog_now_s(self._fleet.queue, self._now_s)

    @cached_property
    def completion_s(self) -> FloatArray:
        """See `FleetView`: the backlog, and what this request adds, which is little if it can join a batch."""
        s, q, m = self._fleet.service, self._fleet.queue, self._column
        rows = q.own_rows[:, m] + self._rows
        batches = np.ceil(rows / s.max_batch_rows[:, m])
        work_s = (s.fixed_s[:, m] * batches + s.per_row_s[:, m] * rows) / s.instances[:, m]
        completion_s: FloatArray = self.backlog_s + (work_s - q.own_work_model_s[:, m])
        return completion_s

    @cached_property
    def service_s(self) -> FloatArray:
        """See `FleetView`."""
        s, m = self._fleet.service, self._column
        batches = np.ceil(self._rows / s.max_batch_rows[:, m])
        service_s: FloatArray = s.fixed_s[:, m] * batches + s.per_row_s[:, m] * self._rows
        return service_s

    @cached_property
    def latency_s(self) -> FloatArray:
        """See `FleetView`."""
        decay_s = self._fleet.settings.estimators.latency_decay_s
        return latency.latency_now_s(self._fleet.latency, self._now_s, decay_s)

    @cached_property
    def error_rate(self) -> FloatArray:
        """See `FleetView`."""
        decay_s = self._fleet.settings.estimators.error_decay_s
        return latency.error_rate_now(self._fleet.latency, self._now_s, decay_s)

    @cached_property
    def tokens(self) -> FloatArray:
        """See `FleetView`."""
        return tokens.level_now(self._fleet.tokens, self._fleet.settings.estimators.tokens, self._now_s)

    @cached_property
    def report_age_s(self) -> FloatArray:
        """See `FleetView`."""
        return self._now_s - self._fleet.reported_s
