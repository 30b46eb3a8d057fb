"""Agents: samples, and reports on their way."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from simulation.reference.clock import Kind, Stream
from simulation.reference.worker import Worker
from simulation.reference.world import World

from balancer.scheduler.events import Report, ReportsLost


def _all_but(balancer: int, in_flight: Sequence[Mapping[str, int]]) -> tuple[tuple[str, int], ...]:
    """What all other balancers have in flight."""
    total: Counter[str] = Counter()
    for b, requests in enumerate(in_flight):
        if b != balancer:
            total.update(requests)
    return tuple(total.items())


class Reports:
    def __init__(self, world: World, received: Callable[[int], None]) -> None:
        """`received`: a report came to this balancer, whatever became of it."""
        self.world = world
        self.received = received

    def start(self) -> None:
        """The first reports, received at once; then samples for ever."""
        for worker in self.world.workers:
            if worker.state == "up":
                self.world.tell(replace(self._take(worker), peers_in_flight=()))
            self._schedule(worker, self.world.u(Stream.PHASE, worker.index), 0)

    def resume(self, worker: Worker) -> None:
        """A sample at this moment, if the worker is back in all respects."""
        if worker.state == "up" and not worker.silent:
            self.world.clock.at(self.world.clock.now_s, Kind.SAMPLE, (worker.index,), self._sample, worker)

    def lose(self, worker: Worker) -> None:
        """The stream breaks; what is on its way is lost."""
        worker.stream += 1
        self.world.tell(ReportsLost(worker.spec.name))

    def _schedule(self, worker: Worker, phase: float, i: int) -> None:
        def once() -> None:
            self._sample(worker)
            self._schedule(worker, phase, i + 1)

        at_s = (phase + i) * self.world.fleet.reports.period_s
        self.world.clock.at(at_s, Kind.SAMPLE, (worker.index,), once)

    def _sample(self, worker: Worker) -> None:
        if worker.state != "up" or worker.silent:
            return
        world, settings = self.world, self.world.fleet.reports
        report = self._take(worker)
        in_flight = [router.fleet.in_flight_at(worker.spec.name) for router in world.routers]
        for b in range(world.fleet.balancers):
            k = (worker.index * world.fleet.balancers + b) << 40 | report.number
            if world.u(Stream.REPORT_LOSS, k) < settings.loss:
                continue
            sent = replace(report, peers_in_flight=_all_but(b, in_flight))
            jitter_s = -settings.jitter_s * math.log1p(-world.u(Stream.REPORT_JITTER, k))
            at_s = world.clock.now_s + world.fleet.report_delay_s + jitter_s
            world.clock.at(at_s, Kind.REPORT, (worker.index, b), self._receive, worker, b, sent, worker.stream)

    def _receive(self, worker: Worker, balancer: int, report: Report, stream: int) -> None:
        if stream == worker.stream:
            self.world.routers[balancer].observe(report, self.world.clock.now_s)
        self.received(balancer)

    def _take(self, worker: Worker) -> Report:
        now_s = self.world.clock.now_s
        models = tuple(
            worker.report_model(m, now_s) for m, model in worker.models.items() if model.name in worker.ready
        )
        report = Report(
            worker=worker.spec.name,
            incarnation=worker.incarnation,
            number=worker.number,
            ready=True,
            models=models,
            balancers=self.world.fleet.balancers,
            device=worker.device_kind,
        )
        worker.number += 1
        return report
