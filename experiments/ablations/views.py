"""Views with something taken away from what the balancer knows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from policies.base import FloatArray
from simulator.engine.layout import Sim
from simulator.view import BatchView


class OpenBatchView(BatchView):
    """A view that takes what executes for open to what comes: all own rows wait, one mean batch of them is under way.

    That is what the estimate was before it knew what executes.
    """

    def __init__(self, seen: BatchView) -> None:
        super().__init__(seen._sim, seen._native, seen._settings)
        # Set on the record that stands for the core's, so that its functions find it.
        queue = cast(Any, self._queue)
        batches = np.ceil(queue.own_rows / self._service.max_batch_rows)
        queue.forming_rows = queue.own_rows
        service = self._service
        work_s = (service.fixed_s * batches + service.per_row_s * queue.own_rows) / service.parallel
        queue.own_work_s = work_s.sum(axis=-1)
        queue.executing_s = queue.own_work_s / np.maximum(batches.sum(axis=-1), 1.0)


class ReportedView(BatchView):
    """A view without dead reckoning: own requests as they are counted, those of others as last reported.

    Nothing is worked off between two events, and nothing is assumed of what others send.
    """

    def __init__(self, seen: BatchView, others: FloatArray, others_work_s: FloatArray) -> None:
        super().__init__(seen._sim, seen._native, seen._settings)
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
