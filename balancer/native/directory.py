"""Who may serve what, and where, as one file for the module; `layouts.py` declares what is in it."""

import dataclasses
import logging
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from balancer.discovery.workers import PortName
from balancer.extproc.inference_bytes import pinned_version
from balancer.extproc.kserve import HeaderNames
from balancer.extproc.prompts import TokenShares
from balancer.kernel.compiled.call import symbol_of
from balancer.kernel.compiled.library import Library, stamp
from balancer.kernel.fleet_state import options_block
from balancer.kernel.policy_answers import Compiler, answering
from balancer.native.enums import Decider, Flag
from balancer.native.journal import Journal, basis_of
from balancer.native.layouts import DIRECTORY_MAGIC, ENDPOINT_BYTES, ENTRY, HEAD, NO_ENTRY, PORTS
from balancer.native.state import Folder, SharedState, in_file
from balancer.scheduler.canary.split import Split, Splits
from balancer.scheduler.fleet import Fleet
from balancer.scheduler.keys import OF_SEQUENCES, STICKY
from policies.base import Policy

logger = logging.getLogger(__name__)
_OF_TOKENS = 0.05
"""By which share the tokens of a byte change until Envoys hear of it."""
_DIRECTORIES_KEPT = 1000
"""How many of the newest directories are remembered with who decided by them; one lasts until something changes."""

UNLISTED_MODEL = "\0"
"""A model that no worker has: what is true of it is true of all that are not listed."""


class Candidate(NamedTuple):
    name: str
    needs_key: bool
    options: str
    """File; empty: it decides nothing within Envoy."""


class _Strings:
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


class Directory:
    """What Envoys decide by: who may serve what and where, and which policies choose. One file for each change."""

    def __init__(self, folder: Folder, state: SharedState, library: Library) -> None:
        self._folder, self._state, self._library = folder, state, library
        self.serial = 0
        self._basis: tuple[object, ...] | None = None
        """What that file was made of; None: of what does not hold any more."""
        self._policies: tuple[Policy | None, ...] = ()
        self._compiled: tuple[bool, ...] = ()
        self._splits = Splits()
        self._endpoints: Mapping[PortName, Mapping[str, str]] = {}
        self.tokens = TokenShares()
        """Replaced by whoever learns them."""
        self._tokens: Mapping[str, float] = {}
        """As in the file."""
        self._names: dict[str, str] = {}
        self._headers: tuple[str | None, ...] = (None,) * 7
        self._limits_tenants = self._no_room = False
        self._deciders: OrderedDict[int, tuple[tuple[str, ...], tuple[Split, ...]]] = OrderedDict()
        """Names of policies, and splits, by the number of the file that has them."""

    def decide_by(self, policy: Policy, baseline: Policy | None, new: Policy | None) -> None:
        """These beside the hashes: in force, the guard's, and the one that is rolled out."""
        self._policies = policy, baseline, new
        self._compiled = tuple(each is not None and self._library.answers(each) for each in self._policies)

    @property
    def any_compiled(self) -> bool:
        return any(self._compiled)

    def list_endpoints(self, endpoints: Mapping[PortName, Mapping[str, str]]) -> None:
        """Of each port, by the names of workers."""
        self._endpoints, self._basis = {port: dict(table) for port, table in endpoints.items()}, None
        self._names = {end: name for table in endpoints.values() for name, end in table.items()}

    def read_headers(self, names: HeaderNames, limits_tenants: bool) -> None:
        """The headers that may say what a body does not, as `NAMED_HEADERS`; and whether the balancer limits tenants
        whose requests it forwards."""
        self._headers, self._limits_tenants, self._basis = dataclasses.astuple(names), limits_tenants, None

    def share_splits(self, splits: Splits) -> None:
        self._splits = splits

    def worker_at(self, endpoint: str) -> str:
        """Whose `address:port` that is; empty: nobody's."""
        return self._names.get(endpoint, "")

    def policy_of(self, serial: int, decider: int) -> str:
        if decider in (Decider.STICKY, Decider.SEQUENCES):
            return STICKY.name
        known = self._deciders.get(serial)
        in_force = self._policies[0]
        assert in_force is not None
        return in_force.name if known is None else known[0][decider]

    def split_of(self, serial: int, number: int) -> Split | None:
        """The one of that number, from 1, in that file; None: there is none, or it is not known any more."""
        known = self._deciders.get(serial)
        return known[1][number - 1] if known is not None and 1 <= number <= len(known[1]) else None

    def outdated(self) -> None:
        self._basis = None

    def publish(self, fleet: Fleet, journal: Journal | None) -> None:
        """With the lock held: have Envoys decide by what holds now, of which those learn who write a journal."""
        splits = [(split, split.share) for split in self._splits.of.values()]
        basis = (fleet.revision, fleet.block.generation, self._policies, fleet.settings, self._headers, splits)
        same = self._basis is not None and all(a is b or a == b for a, b in zip(basis, self._basis, strict=True))
        if same and not self._tokens_changed():
            return
        try:
            self._write(fleet, journal)
        except OSError as error:
            # The last file no longer holds: Envoys ask until there is room.
            self._state.publish(0)
            self._basis = None
            if not self._no_room:
                logger.error("the directory cannot be written, Envoys ask for each request: %s", error)
            self._no_room = True
            return
        self._no_room, self._basis = False, basis

    def _tokens_changed(self) -> bool:
        """By more than is worth a file."""
        written = ((share, self._tokens.get(model, math.inf)) for model, share in self.tokens.all().items())
        return any(abs(share / before - 1) > _OF_TOKENS for share, before in written)

    def _write(self, fleet: Fleet, journal: Journal | None) -> None:
        serial = self.serial + 1
        deciders = self._candidates(fleet, serial)
        self._tokens = self.tokens.all()
        self._folder.write(f"directory-{serial}", self._content(fleet, deciders, journal is not None, serial))
        if journal is not None:
            policy, baseline, new = self._policies
            assert policy is not None
            journal.stand(serial, basis_of(fleet, policy, baseline, new))
        self._state.publish(serial)
        self._folder.keep_only(f"directory-{serial}", *(each.options for each in deciders))
        self.serial = serial
        self._deciders[serial] = tuple(each.name for each in deciders), tuple(self._splits.of.values())
        if len(self._deciders) > _DIRECTORIES_KEPT:
            self._deciders.popitem(last=False)

    def _candidates(self, fleet: Fleet, serial: int) -> tuple[Candidate, ...]:
        (policy, baseline, new), (compiled, baseline_compiled, new_compiled) = self._policies, self._compiled
        return (
            self._candidate(fleet, policy, compiled, f"options-{serial}-policy"),
            self._candidate(fleet, STICKY, True, f"options-{serial}-sticky"),
            self._candidate(fleet, OF_SEQUENCES, True, f"options-{serial}-sequences"),
            self._candidate(fleet, baseline, baseline_compiled, f"options-{serial}-baseline"),
            self._candidate(fleet, new, new_compiled, f"options-{serial}-new"),
        )

    def _candidate(self, fleet: Fleet, policy: Policy | None, compiled: bool, file: str) -> Candidate:
        if policy is None:
            return Candidate("", False, "")
        found = answering(policy, Compiler())
        if found is None or not compiled:
            return Candidate(policy.name, policy.needs_key, "")
        memory = in_file(self._folder.path / file)
        block = options_block(found, fleet.block.room, symbol_of(found.name), memory, self._library.stamp)
        name = f"{file}-{self._state.digest(block.buffer):016x}"
        self._folder.rename(file, name)
        return Candidate(policy.name, policy.needs_key, name)

    def _content(self, fleet: Fleet, deciders: Sequence[Candidate], recorded: bool, serial: int) -> bytes:
        """The bytes of directory number `serial`; `recorded`: whether decisions are written into the journal."""
        settings, strings, splits = fleet.settings, _Strings(), self._splits.of
        endpoints = [[self._endpoints.get(port, {}).get(name, "") for port in PORTS] for name in fleet.names]
        masks: dict[bytes, int] = {}
        entries: dict[tuple[str, str], tuple[Any, ...]] = {}
        listed = set(fleet.listed())
        anybody = not settings.reports_required
        if anybody:
            listed |= {(UNLISTED_MODEL, ""), *_given_versions(fleet, splits)}
        for model, version in listed:
            servable, members = fleet.servable(model, version), fleet.members(model, version)
            placed = [masks.setdefault(mask.tobytes(), len(masks)) for mask in (servable, members)]
            loaded = any(model in worker.versions for worker in fleet.workers)
            data = model.encode("utf-8", "surrogatepass"), version.encode("utf-8", "surrogatepass")
            texts = [strings.add(text) for text in (model, version, repr(model))]
            row = settings.models.get(model)
            limited = row is not None and bool(row.versions or row.devices or row.memory_bytes)
            column = fleet.models.get(model, 0)
            number, share, draws, old, new = _given(fleet, splits, model, version, strings)
            split = number, share, draws, self.tokens.of(model), old, new
            entries[model, version] = (hash_of(*data), *texts, column, *placed, loaded, limited, *split)
        order = sorted(entries, key=lambda key: entries[key][0])
        head = np.zeros((), HEAD)
        head["deciders"] = [(strings.add(each.name), strings.add(each.options), each.needs_key) for each in deciders]
        head["headers"] = [strings.add(name) for name in self._headers]
        listing = np.array([entries[key] for key in order], ENTRY)
        workers = b"".join(_endpoint(text) for of_worker in endpoints for text in of_worker)
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
            | Flag.DECISION_LOG * recorded
            | Flag.GIVES_VERSIONS * bool(splits or any(row.versions for row in settings.models.values()))
            | Flag.LIMITS_TENANTS * self._limits_tenants
            | Flag.SEVERAL_PROTOCOLS * any("" in of_worker for of_worker in endpoints),
            "any_model": order.index((UNLISTED_MODEL, "")) if anybody else NO_ENTRY,
            "no_model": order.index(("", "")),
        }
        for name, value in values.items():
            head[name] = value
        return head.tobytes() + body


def _given_versions(fleet: Fleet, splits: Mapping[str, Split]) -> Iterator[tuple[str, str]]:
    for model, split in splits.items():
        yield from ((model, split.settings.old), (model, split.settings.new))
    for model, row in fleet.settings.models.items():
        yield from ((model, version) for version in row.versions)


def _given(fleet: Fleet, splits: Mapping[str, Split], model: str, version: str, strings: _Strings) -> tuple[Any, ...]:
    if version or model not in splits:
        return 0, 0.0, 0, (0, 0) if version else strings.add(pinned_version(fleet, model)), (0, 0)
    split, number = splits[model], 1 + list(splits).index(model)
    settings = split.settings
    return number, split.share, split.seed, strings.add(settings.old), strings.add(settings.new)


def _endpoint(text: str) -> bytes:
    """One that is too long for the table is left out, as one that is not listed."""
    data = text.encode()
    return (data if len(data) < ENDPOINT_BYTES else b"").ljust(ENDPOINT_BYTES, b"\0")
