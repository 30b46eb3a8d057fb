"""A file followed through every way that files change: rename over it, truncate and write, symlink swap, removal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import watchfiles

from balancer.files.off_loop import OffLoop
from balancer.files.yaml_document import ConfigError, Problem, read_file

_log = logging.getLogger(__name__)

_STEP_MS = 20
"""Changes within this time of each other are one."""
_DEBOUNCE_MS = 50
"""A file that never rests is looked at this often."""
_SETTLE_S = 0.03
"""A content is believed when it reads the same twice this far apart: writers truncate first."""
_MAX_SETTLES = 20
READ_LIMIT_S = 5.0
"""A read that takes longer, as on a network file system that is gone, is told once; nothing else waits for it."""
_POLL_S = 1.0
"""Bind mounts and network file systems may not notify, so the file is read this often anyway."""


async def versions(path: Path, stop: asyncio.Event) -> AsyncGenerator[bytes | ConfigError, None]:
    """Yield the content of `path`, first as it is and then whenever it differs, until `stop` is set.

    Where the file cannot be read, the error is yielded in its place, once for each time that it goes or its reason
    changes. A writer that pauses for longer than the settling time in the middle of a file is seen half done: renaming
    a complete file over the old one is always seen whole.
    """
    last: bytes | str | None = None
    reader: OffLoop[bytes | ConfigError] = OffLoop(READ_LIMIT_S)
    async with contextlib.aclosing(_wakes(path.parent, stop)) as wakes:
        async for _ in wakes:
            content = await _settled(path, reader)
            seen = _comparable(content)
            if seen != last:
                last = seen
                yield content


async def _settled(path: Path, reader: OffLoop[bytes | ConfigError]) -> bytes | ConfigError:
    """The content of `path` once it has stopped changing, or why it cannot be read."""
    content = await _read(path, reader)
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


class _Stop(asyncio.Event):
    """Set when `stop` is; awatch sets its event when it is cancelled, which must not stop anything else."""

    def __init__(self, stop: asyncio.Event) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        return super().is_set() or self._stop.is_set()


async def _wakes(folder: Path, stop: asyncio.Event) -> AsyncGenerator[None, None]:
    """Yield at once, after every change in `folder`, and every `_POLL_S` seconds, until `stop` is set.

    The folder is watched rather than the file, because what a rename or a swap of Kubernetes' `..data` replaces is
    not the file but its name.
    """
    yield
    watched = watchfiles.awatch(
        folder,
        watch_filter=None,
        step=_STEP_MS,
        debounce=_DEBOUNCE_MS,
        stop_event=_Stop(stop),
        rust_timeout=int(_POLL_S * 1000),
        yield_on_timeout=True,
        recursive=False,
    )
    try:
        async with contextlib.aclosing(watched):
            async for _ in watched:
                yield
    except (OSError, RuntimeError) as error:
        # No more inotify instances, say, or the folder is not there yet.
        _log.warning("cannot watch, polling instead", extra={"folder": str(folder), "reason": str(error)})
    while not stop.is_set():
        yield
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _POLL_S)
