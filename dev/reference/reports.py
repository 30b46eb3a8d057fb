"""Agents: samples, and reports on their way."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from balancer.scheduler.events import Report, ReportsLost, SentPrompt
from balancer.scheduler.peers import AtWorker
from dev.reference.clock import Kind, Stream
from dev.reference.worker import Worker
from dev.reference.world import World


def _in_flight(balancers: Sequence[AtWorker]) -> tuple[tuple[str, int], ...]:
    """What they have together."""
    total: Counter[str] = Counter()
    for each in balancers:
        total.update(each.in_flight)
    return tuple(total.items())


class Reports:
    def __init__(self, world: World, received: Callable[[int], None]) -> None:
        """`received`: a report came to this balancer, whatever became of it."""
        self.world = world
        self.received = received
        self._heard: dict[tuple[int, int], tuple[int, int]] = {}
        """By worker and balancer: of which incarnation it has heard of how many prompts."""

    def start(self) -> None:
        """The first reports, received at once; then samples for ever."""
        for worker in self.world.workers:
            if worker.state == "up":
                self.world.tell(replace(self._take(worker), peers_in_flight=(), peers_waiting_tokens=0.0))
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
        each = [router.fleet.at_worker(worker.spec.name) for router in world.routers]
        prompts = worker.prompts[:]
        for b in range(world.fleet.balancers):
            k = (worker.index * world.fleet.balancers + b) << 40 | report.number
            if world.u(Stream.REPORT_LOSS, k) < settings.loss:
                continue
            peers = [there for c, there in enumerate(each) if c != b]
            waiting_tokens = sum(there.waiting_tokens for there in peers)
            sent = replace(report, peers_in_flight=_in_flight(peers), peers_waiting_tokens=waiting_tokens)
            jitter_s = -settings.jitter_s * math.log1p(-world.u(Stream.REPORT_JITTER, k))
            at_s = world.clock.now_s + world.fleet.report_delay_s + jitter_s
            world.clock.at(at_s, Kind.REPORT, (worker.index, b), self._receive, worker, b, sent, worker.stream, prompts)

    def _receive(
        self, worker: Worker, balancer: int, report: Report, stream: int, prompts: list[tuple[int, SentPrompt]]
    ) -> None:
        if stream == worker.stream:
            incarnation, heard = self._heard.get((worker.index, balancer), (report.incarnation, 0))
            heard = heard if incarnation == report.incarnation else 0
            self._heard[worker.index, balancer] = report.incarnation, max(len(prompts), heard)
            told = tuple(prompt for by, prompt in prompts[heard:] if by != balancer)
            report = replace(report, peers_prompts=told)
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
