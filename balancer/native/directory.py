"""Who may serve what, and where, as one file for the module; `layouts.py` declares what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from balancer.extproc.versions import pinned_version
from balancer.kernel.compiled.library import stamp
from balancer.native.layouts import DIRECTORY_MAGIC, ENDPOINT_BYTES, ENTRY, HEAD, NO_ENTRY, Flag
from balancer.scheduler.canary.split import Split
from balancer.scheduler.fleet import Fleet

UNLISTED_MODEL = "\0"
"""A model that no worker has: what is true of it is true of all that are not listed."""


class Candidate(NamedTuple):
    """A policy that may decide."""

    name: str
    needs_key: bool
    options: str
    """File; empty: it decides nothing within Envoy."""


class Deciding(NamedTuple):
    """What decides, beside the fleet."""

    deciders: tuple[Candidate, ...]
    """In the order of `Decider`."""
    headers: tuple[str | None, ...]
    """That may stand in for what the body says, in the order of `NAMED_HEADERS`."""
    recorded: bool = False
    """Whether decisions are written into the journal."""
    limits_tenants: bool = False
    """Whether the balancer limits those whose requests it forwards."""
    splits: Mapping[str, Split] = {}
    """By model, where two versions share its requests."""


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
    entries: dict[tuple[str, str], tuple[Any, ...]] = {}
    listed = set(fleet.listed())
    anybody = not settings.reports_required
    if anybody:
        listed |= {(UNLISTED_MODEL, ""), *_given_versions(fleet, deciding.splits)}
    for model, version in listed:
        servable, members = fleet.servable(model, version), fleet.members(model, version)
        placed = [masks.setdefault(mask.tobytes(), len(masks)) for mask in (servable, members)]
        loaded = any(model in worker.versions for worker in fleet.workers)
        data = model.encode("utf-8", "surrogatepass"), version.encode("utf-8", "surrogatepass")
        texts = [strings.add(text) for text in (model, version, repr(model))]
        row = settings.models.get(model)
        limited = row is not None and bool(row.versions or row.devices or row.memory_bytes)
        given = _given(fleet, deciding.splits, model, version, strings)
        column = fleet.models.get(model, 0)
        entries[model, version] = (hash_of(*data), *texts, column, *placed, loaded, limited, *given)
    order = sorted(entries, key=lambda key: entries[key][0])
    head = np.zeros((), HEAD)
    head["deciders"] = [
        (strings.add(each.name), strings.add(each.options), each.needs_key) for each in deciding.deciders
    ]
    head["headers"] = [strings.add(name) for name in deciding.headers]
    listing = np.array([entries[key] for key in order], ENTRY)
    workers = b"".join(_endpoint(text) for pair in endpoints for text in pair)
    body = workers + listing.tobytes() + b"".join(masks) + bytes(strings.content)
    values = {
        "magic": DIRECTORY_MAGIC,
        "bytes": HEAD.itemsize + len(body),
        "stamp": stamp().encode(),
        "serial": serial,
        "generation": fleet.block.generation,
        "workers": len(endpoints),
        "entries": len(entries),
        "masks": len(masks),
        "strings": len(strings.content),
        "flags": Flag.REPORTS_REQUIRED * settings.reports_required
        | Flag.STICKY_KEYS * settings.sticky_keys
        | Flag.DECISION_LOG * deciding.recorded
        | Flag.GIVES_VERSIONS * bool(deciding.splits or any(row.versions for row in settings.models.values()))
        | Flag.LIMITS_TENANTS * deciding.limits_tenants,
        "any_model": order.index((UNLISTED_MODEL, "")) if anybody else NO_ENTRY,
        "no_model": order.index(("", "")),
    }
    for name, value in values.items():
        head[name] = value
    return head.tobytes() + body


def _given_versions(fleet: Fleet, splits: Mapping[str, Split]) -> Iterator[tuple[str, str]]:
    """What requests that name none may be for, and what is pinned."""
    for model, split in splits.items():
        yield from ((model, split.settings.old), (model, split.settings.new))
    for model, row in fleet.settings.models.items():
        yield from ((model, version) for version in row.versions)


def _given(fleet: Fleet, splits: Mapping[str, Split], model: str, version: str, strings: _Strings) -> tuple[Any, ...]:
    """Of an entry: how a request that names no version gets one."""
    if version or model not in splits:
        return 0, 0.0, 0, (0, 0) if version else strings.add(pinned_version(fleet, model)), (0, 0)
    split, number = splits[model], 1 + list(splits).index(model)
    settings = split.settings
    return number, split.share, split.seed, strings.add(settings.old), strings.add(settings.new)


def _endpoint(text: str) -> bytes:
    """One that is too long for the table is left out, as one that is not listed."""
    data = text.encode()
    return (data if len(data) < ENDPOINT_BYTES else b"").ljust(ENDPOINT_BYTES, b"\0")


def endpoints_of(fleet: Fleet, grpc: Mapping[str, str], http: Mapping[str, str]) -> list[tuple[str, str]]:
    """In the order of the rows: REST's, then gRPC's."""
    return [(http.get(name, ""), grpc.get(name, "")) for name in fleet.names]
