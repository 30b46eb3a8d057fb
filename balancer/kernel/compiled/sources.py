"""Which sources the library is made from, and whether they are still the same."""

from __future__ import annotations

import hashlib
import pathlib

import balancer.kernel
import policies

SOURCES = tuple(map(pathlib.Path, (*balancer.kernel.__path__, *policies.__path__)))
"""Folders of all that is compiled from its own source, and of what compiles it."""


def digest_of(*folders: pathlib.Path) -> str:
    """Of all Python sources in there."""
    content = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content.update(path.read_bytes())
    return content.hexdigest()[:16]
