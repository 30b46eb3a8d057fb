"""Workers from a file: YAML or JSON with `workers:`, a list of `WorkerSpec`, or that list alone, read again whenever it
changes.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from balancer.discovery.workers import WorkerList, WorkerSpec
from balancer.files.schema import StrictModel, validate
from balancer.files.watch import versions
from balancer.files.yaml_document import ConfigError, dump, read_document, read_file


class WorkersFile(StrictModel):
    workers: WorkerList
    """All workers; `[]` for none."""


def parse_workers(content: bytes | str, source: str) -> tuple[WorkerSpec, ...]:
    """The workers that a file's content lists.

    Raises:
        ConfigError: the content does not fit; an empty file is refused, so that a half-written one empties no fleet.
    """
    return validate(WorkersFile, read_document(content, source, "workers")).workers


def load_workers(path: Path) -> tuple[WorkerSpec, ...]:
    """The workers that the file at `path` lists.

    Raises:
        ConfigError: the file cannot be read or does not fit.
    """
    return parse_workers(read_file(path), str(path))


def dump_workers(workers: tuple[WorkerSpec, ...]) -> str:
    return dump(WorkersFile(workers=workers).model_dump(mode="json"))


class FileSource:
    """A `WorkerSource` that watches a file; what does not fit goes to `on_error` and changes nothing."""

    def __init__(self, path: Path, on_error: Callable[[ConfigError], None]) -> None:
        self._path = path
        self._on_error = on_error

    async def updates(self, stop: asyncio.Event) -> AsyncGenerator[tuple[WorkerSpec, ...], None]:
        """The list of workers, first as it is and then after every change, until `stop` is set."""
        last: tuple[WorkerSpec, ...] | None = None
        async with contextlib.aclosing(versions(self._path, stop)) as contents:
            async for content in contents:
                try:
                    if isinstance(content, ConfigError):
                        raise content
                    workers = await asyncio.to_thread(parse_workers, content, str(self._path))
                except ConfigError as error:
                    self._on_error(error)
                    continue
                if workers != last:
                    last = workers
                    yield workers
