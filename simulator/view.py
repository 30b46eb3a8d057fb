"""Many fleets as policies see them: the core's own columns, with the environments as leading axis."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from balancer.core.estimators.queue import work_of_all_s
from balancer.core.settings import EstimatorSettings
from balancer.core.view import View
from policies.base import FloatArray, UintArray
from simulator.engine.layout import Sim

IntArray = npt.NDArray[np.int64]


class BatchView(View):
    """One request in each environment, as its balancer sees the fleet: arrays of shape `(e, n)`."""

    def __init__(self, sim: Sim, settings: EstimatorSettings) -> None:
        self._sim = sim
        states = (
            self._state(sim.queue),
            self._state(sim.service),
            self._state(sim.latency),
            self._state(sim.tokens),
        )
        asked = sim.asked
        super().__init__(states, settings, sim.desk.mask, asked.rows[:, None], asked.now_s[:, None])
        self._rows_of_all = np.arange(len(asked.rows))
        self._deciding = self._rows_of_all * sim.sizes.balancers + asked.balancer
        self._of_model = (..., 0) if sim.sizes.models == 1 else (self._rows_of_all, slice(None), asked.model)

    def _state(self, record: Any) -> Any:
        """The core's record over the deciding balancers' rows; nothing is copied until it is read."""
        return _Lazy(record, self._of_balancer)

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
        age_s: FloatArray = self._now_s - self._of_balancer(self._sim.desk.reported_s)
        return age_s


class OpenBatchView(BatchView):
    """A view that takes what executes for open to what comes: all own rows wait, one mean batch of them is under way.

    That is what the estimate was before it knew what executes.
    """

    def __init__(self, seen: BatchView) -> None:
        super().__init__(seen._sim, seen._settings)
        # Set on the record that stands for the core's, so that its functions find it.
        queue = cast(Any, self._queue)
        batches = np.ceil(queue.own_rows / self._service.max_batch_rows)
        queue.waiting_rows = queue.own_rows
        work_s = work_of_all_s(self._service, queue.own_rows, batches)
        queue.waiting_model_s, queue.own_work_s = work_s, work_s.sum(axis=-1)
        queue.executing_s = queue.own_work_s / np.maximum(batches.sum(axis=-1), 1.0)


class ReportedView(BatchView):
    """A view without dead reckoning: own requests as they are counted, those of others as last reported.

    Nothing is worked off between two events, and nothing is assumed of what others send.
    """

    def __init__(self, seen: BatchView, others: FloatArray, others_work_s: FloatArray) -> None:
        super().__init__(seen._sim, seen._settings)
        queue: Any = self._queue
        queue.progress_s = np.broadcast_to(self._now_s, self.eligible.shape)
        queue.others, queue.others_work_s = self._of_balancer(others), self._of_balancer(others_work_s)
        queue.others_s = queue.progress_s


class AsReported:
    """Remembers what reports said of others' requests; to be asked at every decision of a run, in order.

    A balancer's own copy of that changes with its next pick, so it is taken at the first decision after the report.
    """

    def __init__(self) -> None:
        self._sim: Sim | None = None
        self._others = self._others_work_s = self._reported_s = np.zeros(0)

    def __call__(self, view: BatchView) -> ReportedView:
        """The view of the same moment without dead reckoning."""
        sim = view._sim
        reported_s, queue = sim.desk.reported_s, sim.queue
        if sim is not self._sim:  # another run
            self._sim, self._reported_s = sim, np.full_like(reported_s, np.nan)
            self._others, self._others_work_s = queue.others.copy(), queue.others_work_s.copy()
        fresh = reported_s != self._reported_s
        self._others[fresh], self._others_work_s[fresh] = queue.others[fresh], queue.others_work_s[fresh]
        self._reported_s[:] = reported_s
        return ReportedView(view, self._others, self._others_work_s)


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
    """Stands for a state record of the core: a field is looked up when it is read, and kept."""

    def __init__(self, record: Any, look_up: Any) -> None:
        self._record = record
        self._look_up = look_up

    def __getattr__(self, name: str) -> FloatArray:
        array: FloatArray = self._look_up(getattr(self._record, name))
        setattr(self, name, array)
        return array
