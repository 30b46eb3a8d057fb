"""A file followed through every way that files change: rename over it, truncate and write, symlink swap, removal."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import logging
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from balancer.files.off_loop import OffLoop
from balancer.files.yaml_document import ConfigError, Problem, read_file

_log = logging.getLogger(__name__)

_CHANGES = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200
"""IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE and IN_DELETE: <sys/inotify.h>."""
_REST_S = 0.05
_SETTLE_S = 0.03
"""A content is believed when it reads the same twice this far apart: writers truncate first."""
_MAX_SETTLES = 20
READ_LIMIT_S = 5.0
"""A read that takes longer, as on a network file system that is gone, is told once; nothing else waits for it."""
_POLL_S = 1.0
"""Bind mounts and network file systems may not notify, so the file is read this often anyway."""


async def versions(
    path: Path, stop: asyncio.Event, beside: Callable[[], Path | None] = lambda: None
) -> AsyncGenerator[bytes | ConfigError, None]:
    """Yield the content of `path`, first as it is and then whenever it differs, until `stop` is set.

    It is yielded again where that of another file, `beside`, differs; that one is looked at once a second.

    Where the file cannot be read, the error is yielded in its place, once for each time that it goes or its reason
    changes. A writer that pauses for longer than the settling time in the middle of a file is seen half done: renaming
    a complete file over the old one is always seen whole.
    """
    last: bytes | str | None = None
    last_beside: bytes | str | None = None
    reader: OffLoop[bytes | ConfigError] = OffLoop(READ_LIMIT_S)
    async with contextlib.aclosing(_wakes(path.parent, stop)) as wakes:
        async for _ in wakes:
            content = await _settled(path, reader, last)
            other = beside()
            seen, seen_beside = _comparable(content), None if other is None else _comparable(await _read(other, reader))
            if (seen, seen_beside) != (last, last_beside):
                last, last_beside = seen, seen_beside
                yield content


async def _settled(path: Path, reader: OffLoop[bytes | ConfigError], last: bytes | str | None) -> bytes | ConfigError:
    """The content of `path` once it has stopped changing, or why it cannot be read; `last`: what it was before."""
    content = await _read(path, reader)
    if _comparable(content) == last:
        return content
    for _ in range(_MAX_SETTLES):
        await asyncio.sleep(_SETTLE_S)
        again = await _read(path, reader)
        if _comparable(again) == _comparable(content):
            break
        content = again
    return content


async def _read(path: Path, reader: OffLoop[bytes | ConfigError]) -> bytes | ConfigError:
    def read() -> bytes | ConfigError:
        try:
            return read_file(path)
        except ConfigError as error:
            return error

    try:
        return await reader.run(read)
    except TimeoutError:
        message = f"was not read within {reader.limit_s:g} s; is the file system that it is on still there?"
        return ConfigError([Problem(str(path), None, "", message)])


def _comparable(content: bytes | ConfigError) -> bytes | str:
    return str(content) if isinstance(content, ConfigError) else content


async def _wakes(folder: Path, stop: asyncio.Event) -> AsyncGenerator[None, None]:
    """Yield at once, after every change in `folder`, and every `_POLL_S` seconds, until `stop` is set.

    The folder is watched rather than the file, because what a rename or a swap of Kubernetes' `..data` replaces is
    not the file but its name.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    try:
        events = _inotify(folder)
    except OSError as error:
        # No more inotify instances, say, or the folder is not there yet.
        _log.warning("cannot watch, polling instead", extra={"folder": str(folder), "reason": str(error)})
        events = None
    if events is not None:

        def taken(events: io.FileIO = events) -> None:
            events.read()
            changed.set()

        loop.add_reader(events, taken)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            yield
            change = asyncio.ensure_future(changed.wait())
            await asyncio.wait({stopped, change}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if not change.cancel():
                changed.clear()
                await asyncio.sleep(_REST_S)
    finally:
        stopped.cancel()
        if events is not None:
            loop.remove_reader(events)
            events.close()


def _inotify(folder: Path) -> io.FileIO:
    """A file that is readable when something in the folder has changed. Linux'; the standard library has none, and
    `watchfiles` wakes a thread 20 times a second.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if events < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    file = io.FileIO(events)
    if libc.inotify_add_watch(events, os.fsencode(folder), _CHANGES) < 0:
        file.close()
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return file
