"""Honest clients: closed loops over gRPC and REST that account for every request."""

import asyncio
import contextlib
import itertools
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from balancer.load.result import OK
from balancer.load.runner import DriveOptions, RequestOutcome, drive
from balancer.load.sender import Sender, make_sender
from balancer.load.workload import LoadWorkload
from dev.stack import MODEL

ID_HEADER = "x-soak-id"
"""Numbers the requests of the load, so that a failure is found in Envoy's log."""
_GRPC_CLIENTS, _REST_CLIENTS = 12, 4
_TIMEOUT_S, _LONGEST_S = 60.0, 7200.0
_AFTER_FAILURE_S = 0.05
"""A client waits so long before its next request, as real ones back off."""
_CHANNEL_ARGUMENTS = (
    # Every failure shall be seen: retries are Envoy's.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)
_WORKLOAD = LoadWorkload((MODEL,), np.zeros(1), np.zeros(1, np.int64), np.ones(1, np.int64), np.full(1, np.inf))


@dataclass(frozen=True)
class Failure:
    """A request that did not end well."""

    id: int
    protocol: str
    started_s: float
    """Seconds since the epoch, as all times of the soak."""
    ended_s: float
    code: str
    """As `CallResult` has it."""
    details: str


@dataclass
class Load:
    """Keeps requests in flight until `most` have ended or it is stopped."""

    endpoint: str
    most: int
    started_s: array[float] = field(default_factory=lambda: array("d"))
    """Of requests that were answered well, in the order of their ends."""
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    failures: list[Failure] = field(default_factory=list)
    by_worker: Counter[str] = field(default_factory=Counter)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _senders: list[Sender] = field(default_factory=list)

    @property
    def done(self) -> int:
        return len(self.ended_s) + len(self.failures)

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """All of it; again, where `most` was raised since."""
        if not self._senders:
            self._senders = [
                make_sender(self.endpoint, "grpc", _GRPC_CLIENTS // 4, 0, _CHANNEL_ARGUMENTS),
                make_sender(self.endpoint, "http", 0, _REST_CLIENTS),
            ]
        self._stopping.clear()
        clients = (("gRPC", _GRPC_CLIENTS), ("REST", _REST_CLIENTS))
        await asyncio.gather(
            *(
                drive(
                    self.endpoint,
                    _WORKLOAD,
                    DriveOptions(_TIMEOUT_S, concurrency=count, duration_s=_LONGEST_S, number_header=ID_HEADER),
                    sender=sender,
                    on_outcome=partial(self._ended, protocol),
                    numbers=self._numbers,
                    stop=self._stopping,
                )
                for (protocol, count), sender in zip(clients, self._senders, strict=True)
            )
        )

    async def close(self) -> None:
        for sender in self._senders:
            with contextlib.suppress(OSError):
                await sender.close()

    def longest_s(self, from_s: float, to_s: float) -> float:
        """The longest time that a request took of those under way between two seconds; 0 where there was none."""
        started, ended = np.frombuffer(self.started_s), np.frombuffer(self.ended_s)
        within = (ended >= from_s) & (started <= to_s)
        return float((ended[within] - started[within]).max(initial=0.0))

    async def _ended(self, protocol: str, outcome: RequestOutcome) -> None:
        ended_s, answer = time.time(), outcome.answer
        started_s = ended_s - outcome.latency_s
        if answer.code == OK:
            self.started_s.append(started_s)
            self.ended_s.append(ended_s)
            self.by_worker[answer.worker] += 1
        else:
            failure = Failure(outcome.number, protocol, started_s, ended_s, answer.code, answer.details[:300])
            self.failures.append(failure)
        if self.done >= self.most:
            self._stopping.set()
        if answer.code != OK:
            await asyncio.sleep(_AFTER_FAILURE_S)
