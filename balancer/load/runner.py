"""Drive a listener with a workload: each request at its scheduled time, whatever became of earlier ones.

Latency counts from the scheduled time, not from when this generator came to sending: a client that waits for slow
answers before it sends more hides them ("coordinated omission", Tene, "How NOT to measure latency", 2013).
"""

from __future__ import annotations

import array
import asyncio
import collections
import ctypes
import dataclasses
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from balancer.load.result import OK, LoadResult, quantiles
from balancer.load.sender import CallResult, Sender, make_sender
from balancer.load.workload import LoadWorkload

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Pacer:
    """Waits until moments on `time.monotonic`, by Linux's timerfd; by the event loop's timer where there is none.

    (Python has `os.timerfd_create` from 3.13 on.) One waiter at a time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._fd = -1
        self._settime = None
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "timerfd_create"):
            self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd >= 0:
            self._settime = libc.timerfd_settime
            self._loop.add_reader(self._fd, self._expired)

    def _expired(self) -> None:
        os.read(self._fd, 8)
        self._due.set()

    async def until(self, moment_s: float) -> None:
        """Return at `moment_s` on `time.monotonic`, or at once where that has passed."""
        while (wait_s := moment_s - time.monotonic()) > 0:
            if self._settime is None:
                await asyncio.sleep(wait_s)
                continue
            self._due.clear()
            seconds = int(moment_s)
            # Rounded up, or the timer fires a nanosecond early and the loop goes round for it.
            nanoseconds = min(int((moment_s - seconds) * 1e9) + 1, 999_999_999)
            timer = _Itimerspec(value=_Timespec(seconds, nanoseconds))
            if self._settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(timer), None):
                raise OSError(ctypes.get_errno(), "timerfd_settime failed")
            await self._due.wait()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


PROGRESS_WINDOW_S = 5.0
"""Progress tells the quantiles of the requests that finished within this time."""


@dataclasses.dataclass(frozen=True, slots=True)
class DriveOptions:
    protocol: Literal["grpc", "http"] = "grpc"
    connections: int = 4
    """gRPC connections; HTTP opens one for each request in flight."""
    max_in_flight: int = 2048
    """Beyond it, due requests wait for one to end, and count as late."""
    timeout_s: float = 30.0
    send_deadline: bool = False
    """Whether a request is given up at its own deadline, of which gRPC tells the server."""
    key_header: str = "x-routing-key"
    concurrency: int = 0
    """Above 0, a closed loop: so many requests in flight, each answer followed by the next request. The scheduled
    times are not used; the workload's requests are sent in order, over and over, for `duration_s`."""
    duration_s: float = 0.0
    """Length of a closed loop's run; 0 for an open loop, which is as long as its workload."""
    number_header: str = ""
    """Carries the number of each request; empty: none does."""
    progress_every_s: float = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOutcome:
    number: int
    latency_s: float
    """From its scheduled start."""
    answer: CallResult


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    elapsed_s: float
    planned_s: float
    sent: int
    finished: int
    failed: int
    in_flight: int
    rate_per_s: float
    p50_s: float
    p99_s: float
    lateness_p99_s: float


async def drive(
    url: str,
    workload: LoadWorkload,
    options: DriveOptions | None = None,
    *,
    sender: Sender | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_outcome: Callable[[RequestOutcome], Awaitable[None]] | None = None,
    numbers: Iterator[int] | None = None,
    stop: asyncio.Event | None = None,
    seed: int = 0,
) -> LoadResult:
    """Send a workload to the listener at `host:port` and wait for all answers.

    Args:
        url: Of the listener; not used where `sender` is given.
        workload: What to send and when.
        options: How to send.
        sender: An open one to use, prepared here and left open; by default one is made and closed.
        on_progress: Called every `progress_every_s`.
        on_outcome: Awaited after each request; a closed loop's next one waits for it.
        numbers: Of the requests; None: from 0 on.
        stop: Once set, nothing more is sent, and the answers under way are awaited.
        seed: Of the tensors' contents.

    Raises:
        LoadError: where a model or the listener is not there, or a model does not take the rows.
        ValueError: where options contradict each other, or the workload is empty.
    """
    options = options or DriveOptions()
    if not len(workload):
        raise ValueError("the workload has no requests: give a higher rate or a longer duration")
    if options.concurrency and not options.duration_s > 0:
        raise ValueError(f"duration_s of a closed loop is {options.duration_s}: give seconds above 0")
    own = sender or make_sender(url, options.protocol, options.connections, options.max_in_flight)
    try:
        kinds = np.unique(np.stack([workload.model, workload.rows]), axis=1).T
        await own.prepare(((workload.models[model], int(rows)) for model, rows in kinds), seed)
        run = _Run(own, workload, options, on_outcome, numbers or itertools.count())
        return await run.go(on_progress, stop)
    finally:
        if sender is None:
            await own.close()


class _Run:
    """One run: its clock, its records (columns, appended to as answers come), and the requests in flight."""

    def __init__(
        self,
        sender: Sender,
        workload: LoadWorkload,
        options: DriveOptions,
        on_outcome: Callable[[RequestOutcome], Awaitable[None]] | None,
        numbers: Iterator[int],
    ) -> None:
        self._sender = sender
        self._on_outcome, self._numbers = on_outcome, numbers
        self._workload = workload
        self._options = options
        # Plain lists: reading NumPy scalars one by one would cost more than sending.
        self._models = [workload.models[model] for model in workload.model]
        self._rows: list[int] = workload.rows.tolist()
        self._deadlines_s: list[float] = workload.deadline_s.tolist()
        self._index, self._code, self._worker = (array.array("q") for _ in range(3))
        self._scheduled_s, self._started_s, self._latency_s = (array.array("d") for _ in range(3))
        self._codes: dict[str, int] = {}
        self._workers: dict[str, int] = {"": -1}
        self._sent = self._failed = 0
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._began_s = 0.0
        # (moment, requests finished by then)
        self._window: collections.deque[tuple[float, int]] = collections.deque([(0.0, 0)])

    async def go(self, on_progress: Callable[[Progress], None] | None, stop: asyncio.Event | None) -> LoadResult:
        self._began_s = time.monotonic()
        sending = asyncio.create_task(self._closed_loop() if self._options.concurrency else self._open_loop())
        helpers = [asyncio.create_task(self._tell(on_progress))] if on_progress else []
        stopped = asyncio.create_task((stop or asyncio.Event()).wait())
        try:
            await _first(sending, stopped, self._broken)
            self._stopping = True
            if not sending.done():
                sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.result()
            if self._tasks:
                await _first(asyncio.create_task(asyncio.wait(set(self._tasks))), self._broken)
            if self._broken.done():
                self._broken.result()
        finally:
            self._broken.cancel()
            for task in (sending, stopped, *helpers, *self._tasks):
                task.cancel()
        if on_progress:
            on_progress(self._progress())
        return self._result(time.monotonic() - self._began_s)

    async def _open_loop(self) -> None:
        began_s = self._began_s
        with Pacer() as pacer:
            for index, due_s in enumerate(self._workload.time_s.tolist()):
                if time.monotonic() < began_s + due_s:
                    await pacer.until(began_s + due_s)
                while self._sent - len(self._index) >= self._options.max_in_flight:
                    self._room.clear()
                    await self._room.wait()
                self._sent += 1
                self._start(self._send(index, due_s))

    async def _closed_loop(self) -> None:
        end_s = self._began_s + self._options.duration_s

        async def keep_sending() -> None:
            while (now_s := time.monotonic()) < end_s and not self._stopping:
                index = self._sent % len(self._models)
                self._sent += 1
                await self._send(index, now_s - self._began_s)

        for _ in range(self._options.concurrency):
            self._start(keep_sending())
        await asyncio.wait(set(self._tasks))

    def _start(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A sender turns what goes wrong on the way into a code, so what it raises is a defect: it ends the run.
        if not task.cancelled() and (error := task.exception()) and not self._broken.done():
            self._broken.set_exception(error)

    async def _send(self, index: int, scheduled_s: float) -> None:
        options = self._options
        started_s = time.monotonic() - self._began_s
        timeout_s = options.timeout_s
        if options.send_deadline:
            # What the generator's lateness left of it; a moment, where it left nothing.
            left_s = self._deadlines_s[index] - (started_s - scheduled_s)
            timeout_s = min(timeout_s, max(left_s, 0.001))
        number, headers = next(self._numbers), {}
        if self._workload.keys and (key := self._workload.keys[index]):
            headers[options.key_header] = key
        if options.number_header:
            headers[options.number_header] = str(number)
        answer = await self._sender.send(self._models[index], self._rows[index], timeout_s, headers)
        latency_s = time.monotonic() - self._began_s - scheduled_s
        self._latency_s.append(latency_s)
        self._index.append(index)
        self._scheduled_s.append(scheduled_s)
        self._started_s.append(started_s)
        self._code.append(self._codes.setdefault(answer.code, len(self._codes)))
        self._worker.append(self._workers.setdefault(answer.worker, len(self._workers) - 1))
        self._failed += answer.code != OK
        self._room.set()
        if self._on_outcome is not None:
            await self._on_outcome(RequestOutcome(number, latency_s, answer))

    async def _tell(self, on_progress: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(self._options.progress_every_s)
            on_progress(self._progress())

    def _progress(self) -> Progress:
        elapsed_s = time.monotonic() - self._began_s
        finished = len(self._index)
        self._window.append((elapsed_s, finished))
        while len(self._window) > 2 and self._window[1][0] < elapsed_s - PROGRESS_WINDOW_S:
            self._window.popleft()
        since_s, since = self._window[0]
        recent = slice(since, finished)
        p50_s, p99_s = quantiles(np.array(self._latency_s[recent]), (0.5, 0.99))
        lateness_s = np.array(self._started_s[recent]) - np.array(self._scheduled_s[recent])
        planned_s = self._options.duration_s if self._options.concurrency else float(self._workload.time_s[-1])
        return Progress(
            elapsed_s=elapsed_s,
            planned_s=planned_s,
            sent=self._sent,
            finished=finished,
            failed=self._failed,
            in_flight=self._sent - finished,
            rate_per_s=(finished - since) / max(elapsed_s - since_s, 1e-9),
            p50_s=p50_s,
            p99_s=p99_s,
            lateness_p99_s=quantiles(lateness_s, (0.99,))[0],
        )

    def _result(self, duration_s: float) -> LoadResult:
        scheduled_s = np.array(self._scheduled_s)
        order = np.argsort(scheduled_s, kind="stable")
        index = np.array(self._index, dtype=np.int64)[order]
        workload = self._workload
        return LoadResult(
            models=workload.models,
            codes=tuple(self._codes),
            workers=tuple(name for name in self._workers if name),
            duration_s=duration_s,
            scheduled_s=scheduled_s[order],
            started_s=np.array(self._started_s)[order],
            latency_s=np.array(self._latency_s)[order],
            deadline_s=workload.deadline_s[index],
            rows=workload.rows[index],
            model=workload.model[index],
            code=np.array(self._code, dtype=np.int64)[order],
            worker=np.array(self._worker, dtype=np.int64)[order],
        )


async def _first(*waiting: asyncio.Future[Any]) -> None:
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
