"""Waiting for a moment more precisely than an event loop's timers, which are whole milliseconds."""

import asyncio
import ctypes
import os
import time
from types import TracebackType
from typing import Self

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
