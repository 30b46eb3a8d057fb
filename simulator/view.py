"""Many fleets as policies see them: the core's own columns, with the environments as leading axis."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from balancer.core.settings import EstimatorSettings
from balancer.core.view import View
from balancer.native.kinds import Native
from policies.base import FloatArray, UintArray
from simulator.engine.keys import see_cached
from simulator.engine.layout import Sim


class BatchView(View):
    """One request in each environment, as its balancer sees the fleet: arrays of shape `(e, n)`."""

    def __init__(self, sim: Sim, native: Native, settings: EstimatorSettings) -> None:
        """`native`: all arrays of `sim`, for compiled functions."""
        self._sim, self._native = sim, native
        records = sim.queue, sim.service, sim.latency, sim.tokens, sim.caches
        states: Any = [_Lazy(record, self._of_balancer) for record in records]
        asked = sim.asked
        super().__init__(states, settings, sim.desk.mask, asked.rows[:, None], asked.now_s[:, None])
        self._rows_of_all = np.arange(len(asked.rows))
        self._deciding = self._rows_of_all * sim.sizes.balancers + asked.balancer
        self._of_model = (..., 0) if sim.sizes.models == 1 else (self._rows_of_all, slice(None), asked.model)

    def _of_balancer(self, array: FloatArray) -> FloatArray:
        """`(e, n, ...)` of an array over `(e * balancers * n, ...)`."""
        z = self._sim.sizes
        split = array.reshape(-1, z.workers, *array.shape[1:])
        # Taking along one axis copies rows as a whole; two arrays of indices would take half as long again.
        return split if z.balancers == 1 else split.take(self._deciding, axis=0)

    @property
    def weight(self) -> FloatArray:
        """See `FleetView`."""
        return self._sim.desk.weight

    @property
    def name_hash(self) -> UintArray:
        """See `FleetView`."""
        return self._sim.desk.name_hash

    @cached_property
    def report_age_s(self) -> FloatArray:
        """See `FleetView`."""
        return self._now_s - self._of_balancer(self._sim.desk.reported_s)

    @cached_property
    def cached(self) -> FloatArray:
        """See `FleetView`."""
        found = np.zeros(self._sim.desk.mask.shape)
        see_cached(self._native, found)
        return found

    @cached_property
    def saving_s(self) -> FloatArray:
        """See `FleetView`."""
        return np.where(self._sim.asked.key[:, None] != 0, self._saving_s(), 0.0)


class TrueView:
    """A view whose queues are as they really are, and whose completions know the work that really is before them."""

    def __init__(self, seen: BatchView, pending: FloatArray, backlog_s: FloatArray, completion_s: FloatArray) -> None:
        self._seen = seen
        self.pending = self.in_flight = self.reported_pending = pending
        self.backlog_s = backlog_s
        self.completion_s = completion_s
        self.eligible = seen.eligible
        self.error_rate = np.zeros_like(pending)
        self.report_age_s = np.zeros_like(pending)

    def __getattr__(self, name: str) -> Any:
        """What is not known better."""
        return getattr(self._seen, name)


class _Lazy:
    """Stands for a state record of the core, over the deciding balancers' rows: a field is copied when it is read."""

    def __init__(self, record: Any, look_up: Any) -> None:
        self._record = record
        self._look_up = look_up

    def __getattr__(self, name: str) -> FloatArray:
        array: FloatArray = self._look_up(getattr(self._record, name))
        setattr(self, name, array)
        return array
