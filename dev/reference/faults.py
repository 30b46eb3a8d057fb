"""What happens to workers: faults, and the autoscaler."""

import math
from collections.abc import Callable
from functools import partial

from dev.reference.batcher import LiveRequest
from dev.reference.clock import Kind
from dev.reference.reports import Reports
from dev.reference.worker import Worker
from dev.reference.world import World
from simulator.spec import Fault


class Faults:
    def __init__(
        self,
        world: World,
        reports: Reports,
        lose: Callable[[LiveRequest], None],
        reschedule: Callable[[Worker], None],
        happened: Callable[[], None],
    ) -> None:
        """`happened`: something did."""
        self.happened = happened
        self.world = world
        self.reports = reports
        self.lose = lose
        self.reschedule = reschedule

    def start(self) -> None:
        for index, fault in enumerate(self.world.fleet.faults):
            worker = self.world.index[fault.worker]
            self.world.clock.at(fault.at_s, Kind.FAULT, (index,), self._happen, self._begin, fault, worker)
            end_s = fault.at_s + fault.duration_s
            if math.isfinite(end_s):
                self.world.clock.at(end_s, Kind.FAULT_END, (index,), self._happen, self._end, fault, worker)
        if math.isfinite(self.world.fleet.autoscale.period_s):
            self.world.clock.every(
                self.world.fleet.autoscale.period_s, Kind.AUTOSCALE, partial(self._happen, self._scale)
            )

    def _happen(self, action: Callable[..., None], *what: object) -> None:
        action(*what)
        self.happened()

    def _begin(self, fault: Fault, worker: Worker) -> None:
        match fault.kind:
            case "slow" | "stall":
                self._pace(worker, fault.kind, slow=fault.amount, stalled=True)
            case "errors":
                worker.error_share = fault.amount
            case "silent":
                worker.silent = True
                self.reports.lose(worker)
            case "crash" if worker.state == "up":
                self._crash(worker)
            case "join" if worker.state == "absent":
                self._join(worker)
            case "leave" if worker.state != "absent":
                self._drain(worker, True)
            case "unload" if worker.is_loaded(fault.model):
                worker.unload(fault.model)

    def _end(self, fault: Fault, worker: Worker) -> None:
        match fault.kind:
            case "slow" | "stall":
                self._pace(worker, fault.kind, slow=1.0, stalled=False)
            case "errors":
                worker.error_share = 0.0
            case "silent" if worker.silent:
                worker.silent = False
                self.reports.resume(worker)
            case "crash" if worker.state == "down":
                self._come_up(worker)
            case "join":
                self._ready(worker)
            case "load":
                worker.load(fault.model)
            case "unload" if fault.model in worker.ready:
                worker.load(fault.model)

    def _pace(self, worker: Worker, kind: str, slow: float, stalled: bool) -> None:
        worker.device.update(self.world.clock.now_s)
        if kind == "slow":
            worker.device.slow = slow
        else:
            worker.device.stalled = stalled
        self.reschedule(worker)

    def _crash(self, worker: Worker) -> None:
        lost = worker.crash(self.world.clock.now_s)
        self.reschedule(worker)
        self.reports.lose(worker)
        for request in lost:
            self.lose(request)

    def _join(self, worker: Worker) -> None:
        worker.state = "loading"
        self.world.tell(worker.added)

    def _ready(self, worker: Worker) -> None:
        if worker.state == "loading":
            self._come_up(worker)

    def _come_up(self, worker: Worker) -> None:
        worker.come_up()
        self.reports.resume(worker)

    def _drain(self, worker: Worker, draining: bool) -> None:
        worker.draining = draining
        self.world.tell(worker.added)

    def _scale(self) -> None:
        scale, clock = self.world.fleet.autoscale, self.world.clock
        ready = [worker for worker in self.world.workers if worker.state == "up" and not worker.draining]
        if not ready:
            return
        mean_pending = sum(worker.pending for worker in ready) / len(ready)
        if mean_pending > scale.up_pending:
            absent = [worker for worker in self.world.workers if worker.state == "absent"]
            draining = [worker for worker in self.world.workers if worker.draining]
            if absent:
                self._join(absent[0])
                subject = len(self.world.fleet.faults) + absent[0].index
                at_s = clock.now_s + scale.load_s
                clock.at(at_s, Kind.FAULT_END, (subject,), self._happen, self._ready, absent[0])
            elif draining:
                self._drain(draining[0], False)
        elif mean_pending < scale.down_pending and len(ready) > scale.min_workers:
            self._drain(ready[-1], True)
