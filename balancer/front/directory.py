"""Who may serve what, and where, as one file for the module: balancer/native/module/directory.h declares it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from balancer.core.fleet import Fleet
from balancer.native.library import stamp

MAGIC = int.from_bytes(b"irectory", "little")
VERSION = 1
ENDPOINT_BYTES = 64
_REPORTS_REQUIRED, _STICKY_KEYS = 1, 2
_NO_ENTRY = -1
_HEAD = struct.Struct("=3Q16s7Q2q44I")
_ENTRY = struct.Struct("=Q6Iq2IQ")
_UNHEARD_OF = "\0"
"""A model that no worker has: what is true of it is true of all that are not listed."""


class Decider(NamedTuple):
    """A policy that may decide."""

    name: str
    number: int
    """In outcomes."""
    needs_key: bool
    options: str
    """File; empty: it decides nothing within Envoy."""


class Deciding(NamedTuple):
    """What decides, beside the fleet."""

    deciders: tuple[Decider, ...]
    """In the order of `enum decider`."""
    headers: tuple[str | None, ...]
    """That may stand in for what the body says, in the order of `enum named_header`."""


class _Strings:
    """Texts one after the other, each once."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._at: dict[bytes, int] = {}

    def add(self, text: str | None) -> tuple[int, int]:
        data = (text or "").encode("utf-8", "surrogatepass")
        if data not in self._at:
            self._at[data] = len(self.content)
            self.content += data
        return self._at[data], len(data)


def hash_of(model: bytes, version: bytes) -> int:
    """FNV-1a, by which entries are sorted and found."""
    found = 14695981039346656037
    for byte in (*model, 0xFF, *version):
        found = (found ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return found


def directory_of(fleet: Fleet, endpoints: Sequence[tuple[str, str]], deciding: Deciding, serial: int) -> bytes:
    """The file's content.

    Args:
        fleet: With the masks and columns that hold now.
        endpoints: Of each worker in the order of its rows: REST's and gRPC's `address:port`, empty where not listed.
        deciding: What decides.
        serial: Of the file, which its name has too.
    """
    settings, strings = fleet.settings, _Strings()
    masks: dict[bytes, int] = {}
    entries: dict[tuple[str, str], bytes] = {}
    listed = set(fleet.listed())
    anybody = not settings.reports_required
    for model, version in listed | ({(_UNHEARD_OF, "")} if anybody else set()):
        servable, members = fleet.servable(model, version), fleet.members(model, version)
        placed = [masks.setdefault(mask.tobytes(), len(masks)) for mask in (servable, members)]
        loaded = any(model in worker.versions for worker in fleet.workers)
        data = model.encode("utf-8", "surrogatepass"), version.encode("utf-8", "surrogatepass")
        entries[model, version] = _ENTRY.pack(
            hash_of(*data),
            *(*strings.add(model), *strings.add(version), *strings.add(repr(model))),
            fleet.models.get(model, 0),
            *placed,
            loaded,
        )
    order = sorted(entries, key=lambda key: _ENTRY.unpack(entries[key])[0])
    flags = _REPORTS_REQUIRED * settings.reports_required | _STICKY_KEYS * settings.sticky_keys
    deciders = deciding.deciders
    texts = (*(each.name for each in deciders), *(each.options for each in deciders))
    pieces = [number for text in texts for number in strings.add(text)]
    pieces += [each.number for each in deciders]
    pieces += [int(each.needs_key) for each in deciders]
    pieces += [number for text in deciding.headers for number in strings.add(text)]
    workers = b"".join(_endpoint(text) for pair in endpoints for text in pair)
    body = workers + b"".join(entries[key] for key in order) + b"".join(masks) + bytes(strings.content)
    head = _HEAD.pack(
        *(MAGIC, VERSION, _HEAD.size + len(body), stamp().encode(), serial, fleet.block.generation),
        *(len(endpoints), len(entries), len(masks), len(strings.content), flags),
        order.index((_UNHEARD_OF, "")) if anybody else _NO_ENTRY,
        order.index(("", "")),
        *pieces,
    )
    return head + body


def _endpoint(text: str) -> bytes:
    """One that is too long for the table is left out, as one that is not listed."""
    data = text.encode()
    return (data if len(data) < ENDPOINT_BYTES else b"").ljust(ENDPOINT_BYTES, b"\0")


def endpoints_of(fleet: Fleet, grpc: Mapping[str, str], http: Mapping[str, str]) -> list[tuple[str, str]]:
    """In the order of the rows: REST's, then gRPC's."""
    return [(http.get(name, ""), grpc.get(name, "")) for name in fleet.names]
