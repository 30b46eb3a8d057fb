"""The decision log where Envoys decide too: what they write into the journal and what is decided here, in one order."""

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from balancer.extproc.responses import ERRORS
from balancer.kernel.view import LiveView
from balancer.native.journal import JournalDecision, JournalEntry, JournalRefusal, TornError
from balancer.native.router import SharedRouter
from balancer.scheduler.after_decision import Answered, Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Finished, Withdrawn
from balancer.server.decision_log.files import DecisionFiles
from balancer.server.decision_log.recording import Recording
from policies.base import FleetView, Request
from policies.columns import Columns

logger = logging.getLogger(__name__)

_MOST_AT_ONCE_BYTES = 128 * 2**10
"""Of the journal: some milliseconds."""


def recording_of(router: AnyRouter, files: DecisionFiles, **about: Any) -> Recording:
    if isinstance(router, SharedRouter):
        return NativeRecording(router, files, **about)
    return Recording(router, files, **about)


class NativeRecording(Recording):
    """Of a router that shares its fleet state. What is decided here waits until what Envoys decided before was read."""

    def __init__(self, router: SharedRouter, files: DecisionFiles, *, share: float, **about: Any) -> None:
        super().__init__(router, files, share=share, **about)
        self._shared = router
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """What happened here, and how far the journal was written then."""
        router.record_decisions(share)
        self._journal = router.journal

    def close(self) -> None:
        if self._shared.journal is self._journal:
            self._shared.record_decisions(None)
        while self.drain():
            self._shared.state.beat()
        if self._journal is not None:
            self._journal.close()

    def decided(self, answered: Answered, decision: Decision | None) -> None:
        if self._journal is None or self._in_turn():
            super().decided(answered, decision)
        elif self._wants(answered.request.number):
            kept = answered._replace(view=cast(LiveView, _kept(answered.view)))
            self._later(partial(self._record, kept, decision, self._journal.basis))

    def refused(self, request: Request, error: RoutingError, at_s: float) -> None:
        self._soon(partial(super().refused, request, error, at_s))

    def ended(self, event: Finished | Withdrawn, at_s: float) -> None:
        self._soon(partial(super().ended, event, at_s))

    def began(self, number: int, at_s: float) -> None:
        self._soon(partial(super().began, number, at_s))

    def no_inference(self, number: int) -> None:
        self._soon(partial(super().no_inference, number))

    def _in_turn(self) -> bool:
        return not self._waiting and (self._journal is None or self._journal.caught_up)

    def _soon(self, record: Callable[[], None]) -> None:
        if self._in_turn():
            record()
        else:
            self._later(record)

    def _later(self, record: Callable[[], None]) -> None:
        self._waiting.append((0 if self._journal is None else self._journal.written, record))

    def drain(self, most_bytes: int = _MOST_AT_ONCE_BYTES) -> bool:
        """Record some of what Envoys decided; whether there is more."""
        journal = self._journal
        if journal is None:
            return False
        try:
            for entry in journal.take(most_bytes):
                self._record_before(entry.at)
                self._take(entry)
        except TornError as error:
            logger.error("decisions of Envoys are not recorded, another journal takes the torn one's place: %s", error)
            self._files.lost(1)
            self._record_before(math.inf)
            if self._shared.journal is journal:
                self._shared.journal_is_torn()
            self._journal = self._shared.journal
            return False
        self._record_before(journal.read)
        if dropped := journal.dropped():
            self._files.lost(dropped)
        return not journal.caught_up

    def _record_before(self, at: float) -> None:
        while self._waiting and self._waiting[0][0] <= at:
            self._waiting.popleft()[1]()

    def _take(self, entry: JournalEntry) -> None:
        if isinstance(entry, JournalDecision):
            self._record(entry.answered, entry.decision, entry.basis)
            if entry.question and entry.decision is not None:
                super().no_inference(entry.decision.number)
        elif isinstance(entry, JournalRefusal):
            super().refused(entry.request, ERRORS[entry.grpc_status](), entry.at_s)
        else:
            if not math.isnan(entry.first_token_s):
                super().began(entry.number, entry.first_token_s)
            worker = self._shared.directory.worker_at(entry.endpoint)
            super().ended(entry.event(worker), entry.at_s)


def _kept(view: FleetView) -> Columns:
    return Columns(**{field.name: np.array(getattr(view, field.name)) for field in dataclasses.fields(Columns)})
