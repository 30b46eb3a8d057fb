"""Takes in reports, from agents and relays alike: passes them on as events, and keeps who speaks for each worker."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import grpc

from balancer.bounds import OutOfBoundsError, shown
from balancer.log_throttle import LogThrottle
from balancer.scheduler.events import Event, Report, ReportsLost

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ReportCounts:
    """What came since the process began; all cumulative but `streams` and `relays`."""

    streams: int = 0
    """Agents' streams that are open."""
    relays: int = 0
    """Relays' streams that are open."""
    reports: int = 0
    bytes: int = 0
    """Of serialised reports and questions, without gRPC's and HTTP/2's framing."""
    questions: int = 0
    """Of agents, what is in flight at their workers; all were answered."""
    invalid: int = 0
    """Reports out of bounds; each ended its stream, or what a relay says of the worker."""
    silent: int = 0
    """Streams given up because nothing came."""
    refused: int = 0
    """Streams whose sender may not speak for the worker that it named."""
    taken_over: int = 0
    """Workers of which a newer stream speaks."""
    too_many: int = 0
    """Streams refused because as many were open as there may be."""


class EndedError(Exception):
    """Why a stream, or what it says of a worker, is over."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Way(Protocol):
    """By which reports of a worker come: its agent's stream, or a relay's, which carries many."""

    relayed: ClassVar[bool]

    @property
    def peer(self) -> str: ...

    def over(self, worker: str, ended: EndedError) -> None:
        """Nothing more is taken of the worker."""


@dataclass(slots=True)
class _Speaker:
    number: int
    ways: list[Way]


class Intake:
    """Turns reports into `Report` events, and the end of a worker's last way into `ReportsLost`.

    A worker is whoever opened the newest stream that names it and may speak for it: after a break on the way an agent
    may be back before its old connection is known to be dead, and no number that an older stream carried can shut it
    out. The older stream is ended. Relays do not end each other: an agent may have several, and what the second one
    brings is late. Which reports are late or repeated is for the core to tell.
    """

    def __init__(
        self,
        on_event: Callable[[Event], None],
        refused: Callable[[str], None] = lambda field: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_event` is called with everything; `refused` with each report out of bounds, by the field that is, and
        `streams` for one stream too many; `failed` with each internal error."""
        self.counts = ReportCounts()
        self._on_event, self.refused, self._failed = on_event, refused, failed
        self._opened = 0
        self._speakers: dict[str, _Speaker] = {}
        self._throttle = LogThrottle(time.monotonic)

    def begin(self, worker: str, way: Way) -> int:
        """The way's first report of the worker is valid, and from now on it speaks for it; returns the number of its
        reports' stream."""
        before = self._speakers.get(worker)
        if before is not None and way.relayed and all(each.relayed for each in before.ways):
            before.ways.append(way)
            return before.number
        self._opened += 1
        self._speakers[worker] = _Speaker(self._opened, [way])
        if before is not None:
            why = f"another stream speaks for worker {shown(worker)} now, from {way.peer}"
            ended = EndedError(grpc.StatusCode.ABORTED, f"{why}; is there more than one agent of that name?")
            for each in before.ways:
                each.over(worker, ended)
        return self._opened

    def take(self, report: Report) -> None:
        """Raises EndedError where it cannot be taken in."""
        self._guarded(report, f"a report of worker {shown(report.worker)} was not taken in")
        self.counts.reports += 1

    def end(self, worker: str, way: Way) -> None:
        """The way says nothing of the worker any more; nothing where it does not speak for it."""
        speaker = self._speakers.get(worker)
        if speaker is None or way not in speaker.ways:
            return
        speaker.ways.remove(way)
        if not speaker.ways:
            del self._speakers[worker]
            logger.info("worker %s: report stream ended", shown(worker))
            with contextlib.suppress(EndedError):  # which the log has, and nobody is left to be told
                self._guarded(ReportsLost(worker), f"the end of worker {shown(worker)}'s reports was not taken in")

    def count_end(self, whose: str, ended: EndedError, peer: str) -> None:
        """Of a stream, or of what a relay's says of a worker; `whose` it was, in words."""
        counts = self.counts
        if isinstance(ended.__cause__, OutOfBoundsError):
            counts.invalid += 1
            self.refused(ended.__cause__.field)
        counts.silent += ended.code is grpc.StatusCode.DEADLINE_EXCEEDED
        counts.refused += ended.code is grpc.StatusCode.PERMISSION_DENIED
        counts.taken_over += ended.code is grpc.StatusCode.ABORTED
        if ended.code is not grpc.StatusCode.INTERNAL:
            self.warn(ended.code.name, "report stream of %s from %s ended: %s", whose, peer, ended.why)

    def too_many(self, peer: str, most: int) -> str:
        """Count a stream that is one too many; returns the words that refuse it."""
        self.counts.too_many += 1
        self.refused("streams")
        why = f"{most} report streams are open, and no more may be; is there an agent for each worker?"
        self.warn("too_many", "report stream of %s refused: %s", peer, why)
        return why

    def warn(self, kind: str, message: str, *values: object, exc_info: bool = False) -> None:
        """Log at most once a second of a kind: whoever can make one of these can make thousands."""
        if self._throttle.due(kind):
            logger.warning(message, *values, exc_info=exc_info)

    def _guarded(self, event: Event, failure: str) -> None:
        try:
            self._on_event(event)
        except OutOfBoundsError as error:
            raise EndedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        except Exception as error:
            self._failed()
            self.warn("failed", "%s", failure, exc_info=True)
            raise EndedError(grpc.StatusCode.INTERNAL, "the balancer failed to take the report in") from error
