"""Workers that an operator drains by hand: nothing new goes there, until it is undone or another worker stands there.

A drain is laid over whatever list of workers discovery tells, so it outlasts a new list and a new config. It ends with
the worker: once that is no longer listed, or answers at another address. It is this process's own, and ends with it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric

from balancer.agent.quiet import Activity
from balancer.bounds import shown
from balancer.discovery.workers import WorkerSpec
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.events import Report
from balancer.server.metrics.scraped import gauge

logger = logging.getLogger(__name__)

_NAMED = 10


class UnlistedWorkerError(Exception):
    """Discovery lists no worker of that name; the message says which it lists."""


@dataclass
class _Drained:
    where: tuple[str, str]
    """Its endpoints: another process answers at others."""
    activity: Activity
    queued: float = 0.0


class Drains:
    def __init__(
        self, router: AnyRouter, clock: Callable[[], float], relist: Callable[[Sequence[WorkerSpec]], None]
    ) -> None:
        """`relist` is given the list of discovery again where a drain begins or ends: what it says of them changed."""
        self._router = router
        self._clock = clock
        self._relist = relist
        self._listed: tuple[WorkerSpec, ...] = ()
        self._drained: dict[str, _Drained] = {}

    def __contains__(self, worker: object) -> bool:
        return worker in self._drained

    def over(self, listed: tuple[WorkerSpec, ...]) -> tuple[WorkerSpec, ...]:
        """The workers that discovery lists, those that are drained by hand as draining; it forgets those that went."""
        self._listed = listed
        where = {worker.name: _where(worker) for worker in listed}
        for name in [name for name, drained in self._drained.items() if where.get(name) != drained.where]:
            del self._drained[name]
            logger.info("a worker that was drained by hand is gone", extra={"worker": name})
        draining = {"draining": True}
        return tuple(each.model_copy(update=draining) if each.name in self._drained else each for each in listed)

    def drain(self, worker: str, by: str) -> dict[str, Any]:
        """Give the worker nothing new, and say how far it is; `by`: for the log. UnlistedWorkerError where discovery
        lists none of that name."""
        spec = self._find(worker)
        if worker not in self._drained:
            self._drained[worker] = _Drained(_where(spec), Activity(self._clock()))
            logger.info("worker drained by hand", extra={"worker": worker, "by": by})
            self._relist(self._listed)
        return self.state(worker)

    def undrain(self, worker: str, by: str) -> dict[str, Any]:
        """Take that back; discovery and its agent may still say that it drains. UnlistedWorkerError as `drain`."""
        self._find(worker)
        if self._drained.pop(worker, None) is not None:
            logger.info("worker undrained by hand", extra={"worker": worker, "by": by})
            self._relist(self._listed)
        return self.state(worker)

    def observe(self, report: Report) -> None:
        drained = self._drained.get(report.worker)
        if drained is None:
            return
        drained.activity.observe(report.models, self._clock())
        drained.queued = sum(model.pending + model.executing for model in report.models)

    def state(self, worker: str) -> dict[str, Any]:
        """How far a drain has got, for people and for `balancer drain`. UnlistedWorkerError as `drain`."""
        self._find(worker)
        fleet = self._router.fleet
        row = fleet.index[worker]
        drained = self._drained.get(worker)
        why = "it is not drained by hand" if drained is None else self._left(worker, drained)
        return {
            "worker": worker,
            "drained_by_hand": drained is not None,
            "draining": fleet.workers[row].draining or fleet.workers[row].stopping,
            "in_flight": float(fleet.own_requests(row).sum()),
            "nothing_left": not why,
            "why": why,
        }

    def _left(self, worker: str, drained: _Drained) -> str:
        """What speaks against stopping the worker; empty: nothing."""
        fleet, now_s = self._router.fleet, self._clock()
        row, settings = fleet.index[worker], self._router.settings
        if (own := fleet.own_requests(row).sum()) > 0:
            return f"{own:.0f} requests of this balancer's are in flight there"
        if settings.reports_required or fleet.workers[row].number >= 0:
            if now_s - fleet.reported_s[row] > settings.stale_after_s:
                return "its agent is silent, so nobody knows what others have there"
            if drained.activity.finished < 0:
                return "its agent has not reported since it drains"
        if drained.queued > 0:
            return f"its agent reports some {drained.queued:.1f} requests that wait or execute there"
        quiet_for_s = now_s - max(drained.activity.busy_s, float(fleet.queue.progress_s[row]))
        if quiet_for_s < (needed_s := drained.activity.quiet_needed_s):
            return f"it was busy {max(quiet_for_s, 0.0):.1f} s ago, and is to be idle for {needed_s:.1f} s"
        return ""

    def _find(self, worker: str) -> WorkerSpec:
        found = next((each for each in self._listed if each.name == worker), None)
        if found is None:
            names = [each.name for each in self._listed]
            further = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            known = f"{', '.join(names[:_NAMED])}{further}" or "none"
            raise UnlistedWorkerError(f"worker: discovery lists no {shown(worker)}; it lists {known}")
        return found

    def metrics(self) -> Iterator[Metric]:
        drained = dict.fromkeys(self._drained, 1.0)
        yield gauge("balancer_worker_drained", "1: drained by hand, until somebody undoes it", drained, "worker")


def _where(worker: WorkerSpec) -> tuple[str, str]:
    return worker.grpc_endpoint, worker.http_endpoint
