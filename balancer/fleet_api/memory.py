"""Changes of workers that those which join later have to make too: the last one about each thing, in order."""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, Message

from balancer.channels.restricted import Headers
from balancer.extproc.kserve import SETTINGS
from balancer.files.regular import UnreadableError, read_regular, replace_file
from balancer.fleet_api.ports import REQUESTS

logger = logging.getLogger(__name__)

MOST_CHANGES = 4096
MOST_BYTES = 64 * 2**20
_FILE_BYTES = 2 * MOST_BYTES
"""Of the file, in which bytes are written as text."""
_LOAD, _UNLOAD = "RepositoryModelLoad", "RepositoryModelUnload"
_REGISTER, _UNREGISTER = "SharedMemoryRegister", "SharedMemoryUnregister"


class TooMuchError(Exception):
    """No more can be kept; the message says what to do."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    method: str
    request: Any
    headers: Headers = ()
    """That Triton's restricted protocols want."""

    @property
    def model(self) -> str:
        return str(self.request.model_name) if self.method in (_LOAD, _UNLOAD) else ""

    @property
    def loads(self) -> bool:
        return self.method == _LOAD

    @property
    def about(self) -> str:
        """What it changes: of two changes about the same, the later one counts."""
        if self.method in (_LOAD, _UNLOAD):
            return f"model {self.model}"
        if self.method in SETTINGS:
            return f"{self.method} {getattr(self.request, 'model_name', '')}"
        return f"{self.method.partition('SharedMemory')[0]} region {self.request.name}"


class Memory:
    """Kept in memory and, where there is a file, there: shared by the processes of a machine, and after a restart."""

    def __init__(self, file: Callable[[], Path | None]) -> None:
        self._file = file
        self._changes: dict[str, MemoryChange] = {}

    def changes(self) -> list[MemoryChange]:
        """In the order in which to make them; blocks."""
        self._read()
        return list(self._changes.values())

    def make_room(self, change: MemoryChange) -> None:
        """TooMuchError where such a change could not be kept."""
        kept = [each for about, each in self._changes.items() if about != change.about]
        size = sum(each.request.ByteSize() for each in (*kept, change))
        if len(kept) >= MOST_CHANGES or size > MOST_BYTES:
            raise TooMuchError(
                f"more than {MOST_CHANGES} changes or {MOST_BYTES} bytes would have to be kept for workers that join; "
                "put models and files into the repository"
            )

    def keep(self, change: MemoryChange) -> None:
        """Take a change over that was made; blocks."""
        self._read()
        before = self._changes.pop(change.about, None)
        if change.method.endswith(_UNREGISTER):
            self._forget_regions(change)
        elif change.method in SETTINGS:
            self._changes[change.about] = _over(before, change)
        else:
            self._changes[change.about] = change
        self._write()

    def _forget_regions(self, change: MemoryChange) -> None:
        """Without a name it is about all of its kind."""
        if not change.request.name:
            kind = change.method.replace(_UNREGISTER, _REGISTER)
            for about in [about for about, each in self._changes.items() if each.method == kind]:
                del self._changes[about]

    def _read(self) -> None:
        file = self._file()
        if file is None or not file.exists():
            return
        try:
            entries = json.loads(read_regular(file, _FILE_BYTES))
            changes = [_change(entry) for entry in entries]
        except (UnreadableError, DecodeError, ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            # What is known stays; the next change writes the file anew.
            logger.error("fleet.control.file: %s cannot be used: %s; remove it, and make the changes anew", file, error)
            return
        self._changes = {change.about: change for change in changes}

    def _write(self) -> None:
        file = self._file()
        if file is None:
            return
        entries = [
            {
                "method": change.method,
                "request": base64.b64encode(change.request.SerializeToString()).decode(),
                "headers": list(change.headers),
            }
            for change in self._changes.values()
        ]
        try:
            replace_file(file, json.dumps(entries).encode())  # headers of restricted protocols are secrets
        except OSError as error:
            logger.error("fleet.control.file: %s cannot be written: %s; name another", file, error)


def _change(entry: dict[str, Any]) -> MemoryChange:
    method = str(entry["method"])
    request: Message = REQUESTS[method].FromString(base64.b64decode(entry["request"], validate=True))
    return MemoryChange(method, request, tuple((str(name), str(value)) for name, value in entry["headers"]))


def _over(before: MemoryChange | None, change: MemoryChange) -> MemoryChange:
    """Settings that the later change does not name are the earlier one's."""
    if before is None:
        return change
    request = type(change.request)()
    request.CopyFrom(before.request)
    for key, value in change.request.settings.items():
        request.settings[key].CopyFrom(value)
    return MemoryChange(change.method, request, change.headers)
