"""What a relay has still to tell one balancer: of each worker the newest report, once. No I/O."""

from collections.abc import Iterable, Mapping

from balancer import bounds
from balancer.reports import report_pb2
from balancer.reports.codec import ReportEncoder
from balancer.reports.prompts import Listener, PromptLog
from balancer.scheduler.events import Report

_FRAMING_BYTES = 8
"""Of a report in a message."""


class _OfWorker:
    """What the balancer was told of a worker."""

    def __init__(self) -> None:
        self.encoder = ReportEncoder()
        self.listener: Listener | None = None
        """Where the balancer's discovery lists the worker, so that it is told of prompts."""
        self.draining_from = 0
        """Which message was the first of those that say draining; 0: the last one does not."""


class Outgoing:
    """Of one stream."""

    def __init__(self, balancer: str, newest: Mapping[str, Report], prompts: Mapping[str, PromptLog]) -> None:
        """
        Args:
            balancer: Its address.
            newest: Reports of all workers that there are, by name.
            prompts: What the workers' balancers sent them, by name; of every worker that is offered.
        """
        self._balancer, self._prompts = balancer, prompts
        self._told: dict[str, _OfWorker] = {}
        self._due = dict(newest)
        """The worker that waits longest first."""
        self._put_off: report_pb2.WorkerReport | None = None
        """It was encoded and found no room in its message: it is the next one's first."""
        self._lost: dict[str, None] = {}
        self._sent = self._received = 0
        self._unacknowledged: list[str] = []
        """The workers of the last message."""

    @property
    def waits(self) -> bool:
        return bool(self._due or self._lost) or self._put_off is not None

    @property
    def may_send(self) -> bool:
        """Once the last message is acknowledged: what comes meanwhile takes the place of what waits."""
        return self._received == self._sent

    def offer(self, report: Report) -> bool:
        """Whether it takes the place of one that was not sent."""
        replaced = report.worker in self._due
        self._due[report.worker] = report
        return replaced

    def lose(self, worker: str) -> None:
        """Nobody reports on it here any more."""
        if self.forget(worker):
            self._lost[worker] = None

    def forget(self, worker: str) -> bool:
        """Begin anew with it, if it is offered again; whether the balancer was told of it."""
        self._due.pop(worker, None)
        if self._put_off is not None and self._put_off.worker == worker:
            self._put_off = None
        return self._told.pop(worker, None) is not None

    def message(self, balancers: int) -> report_pb2.RelayedReports:
        """The next one, as large as one may be; it counts as sent. `balancers`: how many are told."""
        self._sent += 1
        message, self._lost = report_pb2.RelayedReports(lost=self._lost), {}
        size = message.ByteSize()
        while len(message.reports) < bounds.MAX_RELAYED and (self._put_off is not None or self._due):
            report = self._put_off or self._encoded(self._due.pop(next(iter(self._due))))
            report.balancers = balancers
            size += report.ByteSize() + _FRAMING_BYTES
            if message.reports and size > bounds.MAX_REPORT_BYTES:
                self._put_off = report
                break
            self._put_off = None
            message.reports.append(report)
            told = self._told[report.worker]
            told.draining_from = (told.draining_from or self._sent) if report.draining else 0
        self._unacknowledged = [report.worker for report in message.reports]
        return message

    def acknowledged(self, received: int, unlisted: Iterable[str]) -> None:
        """The balancer has `received` messages; its discovery lacks those of the last one's workers."""
        if self.may_send or received != self._sent:
            return
        self._received = received
        lacks = frozenset(unlisted)
        for worker in self._unacknowledged:
            told = self._told.get(worker)
            if told is not None and (worker in lacks) != (told.listener is None):
                told.listener = None if worker in lacks else Listener(self._prompts[worker], self._balancer)

    def knows_draining(self, worker: str) -> bool:
        """Whether the balancer acknowledged a report that says draining, as all since do."""
        told = self._told.get(worker)
        return told is not None and 0 < told.draining_from <= self._received

    def _encoded(self, report: Report) -> report_pb2.WorkerReport:
        told = self._told.get(report.worker)
        if told is None:
            told = self._told[report.worker] = _OfWorker()
        message = told.encoder.encode(report)
        message.prompts.extend(told.listener.next() if told.listener else ())
        return message
