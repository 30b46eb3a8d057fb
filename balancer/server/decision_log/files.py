"""The files of a decision log: written by a thread of their own, rotated by size, bounded in number.

Whoever records must never wait for a disk: lines go into a bounded queue, and those that find it full are dropped and
counted. The thread only compresses and writes, both without the interpreter's lock. Several lines at a time make one
gzip member, so a file that was cut, by a crash, is whole up to its last member but one.
"""

import contextlib
import gzip
import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl.gz"
_PERIOD_S = 0.25
"""Between two looks at the queue: what a crash may cost."""
_MOST_WAITING_BYTES = 16 * 2**20
_MEMBER_BYTES = 2**20
_LEVEL = 1
"""Of compression: to about a quarter of the size; level 6 takes three times as long for a tenth less."""


class DecisionFiles:
    """`decisions-PROCESS-NUMBER.jsonl.gz` in a folder, the numbers growing beyond those that are there."""

    def __init__(
        self,
        folder: Path,
        process: str,
        max_file_bytes: int,
        max_files: int,
        count: Callable[[str, int], None] = lambda result, lines: None,
    ) -> None:
        """`count` is called with what became of lines, `written` or `dropped`, and how many, from either thread."""
        self._folder = folder
        self._stem = f"decisions-{process}-"
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._count = count
        self._waiting: deque[tuple[bytes, str]] = deque()
        # Each is written by one thread only, so neither needs a lock.
        self._put_bytes = self._taken_bytes = 0
        self._standing: dict[str, bytes] = {}
        self._file: BinaryIO | None = None
        self._size_bytes = 0
        self._failure = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    def put(self, line: bytes, standing: str = "") -> None:
        """Write a line soon, or drop it where too many wait.

        One that is `standing` is never dropped, and stands at the top of every later file as well, until another of
        that name replaces it.
        """
        if not standing and self._put_bytes - self._taken_bytes > _MOST_WAITING_BYTES:
            self._count("dropped", 1)
            return
        self._put_bytes += len(line)
        self._waiting.append((line, standing))

    def lost(self, count: int) -> None:
        self._count("dropped", count)

    def close(self, wait_s: float = 0.0) -> None:
        """Write what waits, and end; wait for that at most so long."""
        self._stop.set()
        if wait_s:
            self._thread.join(wait_s)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stop.wait(_PERIOD_S)
            while self._waiting:
                self._write_some()
        self._leave_file()

    def _write_some(self) -> None:
        """One member, at the top of a new file where the last one is full."""
        taken: list[tuple[bytes, str]] = []
        size_bytes = 0
        while self._waiting and size_bytes < _MEMBER_BYTES:
            taken.append(self._waiting.popleft())
            size_bytes += len(taken[-1][0])
        self._taken_bytes += size_bytes
        text = b"".join(line for line, _ in taken)
        try:
            if self._file is None:
                self._file = self._next_file()
                text = b"".join(self._standing.values()) + text
            member = gzip.compress(text, _LEVEL)
            self._file.write(member)
            self._file.flush()
            self._size_bytes += len(member)
            self._count("written", len(taken))
            self._failure = ""
            if self._size_bytes >= self._max_file_bytes:
                self._leave_file()
        except OSError as error:
            self._count("dropped", len(taken))
            self._log_failure(error)
            self._leave_file()
        finally:
            self._standing |= {name: line for line, name in taken if name}

    def _next_file(self) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        files = sorted(self._folder.glob(f"{self._stem}*{SUFFIX}"), key=number_of)
        number = number_of(files[-1]) + 1 if files else 1
        for old in files[: max(len(files) + 1 - self._max_files, 0)]:
            old.unlink(missing_ok=True)
        self._size_bytes = 0
        return (self._folder / f"{self._stem}{number:06}{SUFFIX}").open("xb")

    def _leave_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # it tries to write again what could not be written
                self._file.close()
            self._file = None

    def _log_failure(self, error: OSError) -> None:
        if str(error) != self._failure:
            self._failure = str(error)
            logger.error(
                "decisions are not recorded: %s; decision_log.folder must name a folder with room that this user may "
                "write to",
                error,
            )


def number_of(file: Path) -> int:
    """The number in a file's name, by which the files of a process are in order; -1: it has none."""
    number = file.name.removesuffix(SUFFIX).rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
