"""Blocks in files that other processes map; see `balancer.core.kernel.block`."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from balancer.core.kernel.block import Memory


def in_file(path: Path) -> Memory:
    """Memory in the file of that path, for this user alone.

    With every new block another file takes the path, and whoever has mapped the one before keeps that: its header then
    says that it is not in force. A file that was just made is no block yet, which its first bytes tell.

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
