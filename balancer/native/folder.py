"""The folder that a balancer and the Envoys of its machine share."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import stat
from pathlib import Path

from balancer.kernel.block import Memory

_PARENT = Path("/dev/shm")
FLEET_STATE, CONTROL, JOURNAL = "fleet_state", "control", "journal"
_OWNER = "owner"


class FolderError(Exception):
    """The folder cannot be used; the message says why, and what to do."""


def default_folder(listen: str) -> Path:
    """For a balancer that listens there for Envoy: the same for whoever reads the same config."""
    return _PARENT / f"balancer-{os.getuid()}-{hashlib.sha256(listen.encode()).hexdigest()[:12]}"


class Folder:
    """Owned by one balancer at a time, while it lives."""

    def __init__(self, path: Path) -> None:
        """Take it over, with what the last owner left behind: Envoys go on with that until there is something new.

        Raises:
            FolderError: it is somebody else's, others may enter, or another balancer has it.
        """
        self.path = path
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
                raise FolderError(f"{path} is not a folder of this user alone; remove it, or name another")
            self._owner = os.open(path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FolderError(f"{path} cannot be used: {error.strerror}; name another folder") from error
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._owner)
            raise FolderError(f"{path} is in use by another balancer; name another folder for this one") from error

    def write(self, name: str, content: bytes) -> None:
        """A whole file at once; `OSError` where there is no room."""
        draft = self.path / f".{name}.new"
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(content)
            draft.replace(self.path / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def rename(self, name: str, to: str) -> None:
        (self.path / name).replace(self.path / to)

    def keep_only(self, *names: str) -> None:
        """Remove directories and options but those."""
        for path in self.path.iterdir():
            if path.name.startswith(("directory-", "options-", ".")) and path.name not in names:
                path.unlink(missing_ok=True)

    def seat_is_free(self, seat: int) -> bool:
        """Whether no living Envoy sits there: each holds a lock on a file, which ends with its process."""
        try:
            file = os.open(self.path / f"seat-{seat}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def close(self) -> None:
        os.close(self._owner)


def in_file(path: Path) -> Memory:
    """Memory in the file of that path, for this user alone.

    Every new block is a new file that takes over the path. A process that mapped the old file keeps it, and reads in
    its header that it is no longer in force. A file that was just made is no block yet, which its first bytes tell.

    `OSError` where there is no room for it, or no right to it.
    """

    def memory(size_bytes: int) -> mmap.mmap:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Now, as what cannot be had later ends the process.
            os.posix_fallocate(file, 0, size_bytes)
            mapped = mmap.mmap(file, size_bytes)
        except BaseException:
            draft.unlink()
            raise
        finally:
            os.close(file)
        draft.replace(path)
        return mapped

    return memory
