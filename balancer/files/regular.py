"""Files that an operator names: read without waiting for a FIFO, a device or a file without end, and written whole."""

import os
import stat
from pathlib import Path

from balancer.bounds import MAX_FILE_BYTES

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnreadableError(Exception):
    """A file cannot be read; the message says why and what to do, without naming the file."""


def read_regular(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        UnreadableError: there is none, or it is of another kind, or longer than `most_bytes`.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        # A socket cannot be opened at all, which the system says less clearly.
        raise UnreadableError(_other_kind(path) or _reason(error)) from error
    try:
        status = os.fstat(descriptor)
        if kind := _kind(status.st_mode):
            raise UnreadableError(kind)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableError(_reason(error)) from error
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        size = max(status.st_size, len(content))
        raise UnreadableError(f"is {size} bytes long, and at most {most_bytes} are read; name another")
    return content


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all: whoever reads it sees the old content or the new one.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}; put the file there or name another"


def _other_kind(path: Path) -> str:
    try:
        return _kind(path.stat().st_mode)
    except OSError:
        return ""


def _kind(mode: int) -> str:
    """What is wrong with a file of that mode; empty: it is a regular one."""
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "")
    return f"is {kind}; name a regular file" if kind else ""
