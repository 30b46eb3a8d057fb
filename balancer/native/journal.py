"""What Envoys write of their decisions for the decision log: file `journal`, see envoy/module/journal.h.

Another process writes it, so that everything in it is checked before it is used. Of what a policy
saw it has the state behind the columns, which are made here for many decisions at once, by the functions that a
decision in Python calls.
"""

import ctypes
import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from balancer import bounds
from balancer.extproc.responses import ERRORS
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from balancer.kernel.settings import EstimatorSettings
from balancer.kernel.view import LiveView, View, column, part
from balancer.native.enums import RecordFlag, RecordKind
from balancer.native.envoy_module import Module
from balancer.native.layouts import ENDED_RECORD, JOURNAL_RING_BYTES, REQUEST_RECORD, SEEN, VOIDS
from balancer.native.state import JOURNAL, Folder, in_file
from balancer.scheduler.after_decision import Answered, Decision
from balancer.scheduler.canary.selector import Role
from balancer.scheduler.events import Finished, Void, Withdrawn
from balancer.scheduler.fleet import Fleet
from balancer.scheduler.keys import OF_SEQUENCES, STICKY
from policies.base import BoolArray, FloatArray, Policy, Request, UintArray
from policies.columns import Columns, columns_of
from policies.hashing import hash_draw, model_hash_of

_NONE = 2**64 - 1
_ARRAYS = sum(map(len, SEEN.values()))
_COLUMNS = columns_of("moment", "request")
# Flags as whole numbers, which are some ten times as fast.
_KEYED, _SEQUENCE, _QUESTION, _OK = map(int, RecordFlag)


class TornError(Exception):
    """What is in the journal cannot have been written there by the module."""


class Member(NamedTuple):
    name: str
    device: str


class DecisionBasis(NamedTuple):
    """What decisions by one directory rest on, beside what is recorded of each."""

    changes: int
    workers: tuple[Member, ...]
    weight: FloatArray
    name_hash: UintArray
    kind_hash: UintArray
    estimators: EstimatorSettings
    deciders: tuple[tuple[Policy | None, Role], ...]
    """In the order of `Decider`."""


def basis_of(fleet: Fleet, policy: Policy, baseline: Policy | None = None, new: Policy | None = None) -> DecisionBasis:
    """Of the fleet as it is now, and of who may decide: `baseline`: the guard's, `new`: the one that is rolled out."""
    hashes: tuple[tuple[Policy | None, Role], ...] = (STICKY, "hash"), (OF_SEQUENCES, "hash")
    deciders = (policy, "in_force"), *hashes, (baseline, "baseline"), (new, "rollout")
    members = tuple([Member(worker.name, worker.device) for worker in fleet.workers])
    arrays = fleet.weight.copy(), fleet.name_hash.copy(), fleet.decision.kind_hash[0].copy()
    return DecisionBasis(fleet.changes, members, *arrays, fleet.settings.estimators, deciders)


class JournalDecision(NamedTuple):
    at: int
    answered: Answered
    decision: Decision | None
    question: bool
    """About a model or server, so that it is no load."""
    basis: DecisionBasis


class JournalRefusal(NamedTuple):
    """A request that was refused before any policy decided."""

    at: int
    request: Request
    grpc_status: int
    at_s: float


class JournalOutcome(NamedTuple):
    at: int
    number: int
    at_s: float
    endpoint: str
    """That served it; empty: none."""
    latency_s: float | None
    ok: bool
    void: Void
    first_token_s: float
    """When that came; not a number: it did not."""
    said_s: float
    output_tokens: float
    cached_tokens: float

    def event(self, worker: str) -> Finished | Withdrawn:
        """As the router takes it in; `worker`: at the endpoint."""
        if not self.endpoint:
            return Withdrawn(self.number)
        answer = self.output_tokens, self.said_s, self.cached_tokens
        return Finished(self.number, worker, self.latency_s, self.ok, self.void, *answer)


JournalEntry = JournalDecision | JournalRefusal | JournalOutcome
"""`at`: where in the journal it begins."""


class _RawDecision(NamedTuple):
    """A decision as it was written; `numbers`, `(_ARRAYS + 1, n)`: what was seen, and the probabilities."""

    at: int
    serial: int
    request: Request
    at_s: float
    decider: int
    question: bool
    propensity: float
    row: int
    fallbacks: tuple[int, ...]
    numbers: FloatArray
    eligible: Any


class Journal:
    """One balancer's, while it keeps a decision log."""

    def __init__(self, module: Module, folder: Folder, share: float) -> None:
        """`share`: of the decisions, that Envoys are to record. `OSError` where there is no room for it."""
        self._module, self._folder, self._share = module, folder, share
        self._chunk = np.empty(JOURNAL_RING_BYTES, np.uint8)
        self._bases: dict[int, DecisionBasis] = {}
        self.read = 0
        """How far it was read: bytes, ever."""
        self._left = b""
        """What was not read yet of the file before."""
        self._make()

    def _make(self) -> None:
        self._memory: mmap.mmap = in_file(self._folder.path / JOURNAL)(self._module.call("journal_bytes"))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._begun_at = self.read + len(self._left)
        self._dropped = 0
        self._call("init", self._share, self._begun_at)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._module.call(f"journal_{name}", self._address, *arguments)

    def stand(self, serial: int, basis: DecisionBasis) -> None:
        if self.caught_up:
            self._bases.clear()
        self._bases[serial] = basis

    @property
    def basis(self) -> DecisionBasis:
        return self._bases[max(self._bases)]

    @property
    def written(self) -> int:
        return min(int(self._call("written")), self.read + JOURNAL_RING_BYTES)

    @property
    def caught_up(self) -> bool:
        return not self._left and int(self._call("written")) == self.read

    def dropped(self) -> int:
        """Records that found no room since the last call."""
        dropped = int(self._call("dropped"))
        new, self._dropped = max(dropped - self._dropped, 0), dropped
        return new

    def renew(self, *, torn: bool = False) -> None:
        """Go on in another file, since somebody else may write to this one out of turn, or did, where it is torn. Until
        it is published with another directory, and with the lock held. `OSError` where there is no room."""
        if torn:
            self.read, self._left = self.written, b""
        else:
            pieces, at = [self._left], self._begun_at if self._left else self.read
            while count := self._copy(at, JOURNAL_RING_BYTES):
                pieces.append(self._chunk[:count].tobytes())
                at += count
            self._left = b"".join(pieces)
        before = self._memory
        self._make()
        del before

    def close(self) -> None:
        (self._folder.path / JOURNAL).unlink(missing_ok=True)

    def take(self, most_bytes: int) -> list[JournalEntry]:
        """What was written next, some `most_bytes` of it, in order; it may be written over then. Raises `TornError`."""
        content = self._next(most_bytes)
        try:
            # Numbers of any kind may be in there.
            with np.errstate(all="ignore"):
                entries, taken = self._understand(content)
        except (struct.error, ValueError, LookupError, OverflowError) as error:
            raise TornError(f"{type(error).__name__}: {error}") from error
        self.read += taken
        if self._left:
            self._left = self._left[taken:]
        else:
            self._call("done", self.read)
        return entries

    def _next(self, most_bytes: int) -> bytes:
        """Whole records, and part of another, unless there are none or the first is torn."""
        if self._left:
            return self._left[: max(most_bytes, *struct.unpack_from("=I", self._left))]
        count = self._copy(self.read, most_bytes)
        if count == most_bytes and (first := int(self._chunk[:4].view(np.uint32)[0])) > count:
            count = self._copy(self.read, first)
        return self._chunk[:count].tobytes()

    def _copy(self, at: int, most_bytes: int) -> int:
        count = int(self._call("take", at, self._chunk.ctypes.data, most_bytes))
        if count == _NONE:
            raise TornError("more was written than there is room for")
        return count

    def _understand(self, content: bytes) -> tuple[list[JournalEntry], int]:
        raw: list[_RawDecision | JournalRefusal | JournalOutcome] = []
        at = 0
        while at + 8 <= len(content):
            size_bytes, kind = struct.unpack_from("=IB", content, at)
            if size_bytes < 8 or size_bytes % 8:
                raise ValueError(f"a record of {size_bytes} bytes")
            if at + size_bytes > len(content):
                break
            if kind != RecordKind.RECORD_SKIP:
                raw.append(_record(kind, content[at : at + size_bytes], self.read + at))
            at += size_bytes
        if content and not at:
            raise ValueError("a record that does not end")
        made: list[JournalDecision] = []
        for serial, same in groupby((one for one in raw if isinstance(one, _RawDecision)), lambda one: one.serial):
            made += _decisions(list(same), self._bases[serial])
            self._bases = {known: basis for known, basis in self._bases.items() if known >= serial}
        decisions = iter(made)
        return [next(decisions) if isinstance(one, _RawDecision) else one for one in raw], at


def _record(kind: int, content: bytes, at: int) -> _RawDecision | JournalRefusal | JournalOutcome:
    """One record; raises `ValueError` and the like where it cannot be one."""
    if kind == RecordKind.RECORD_OUTCOME:
        _check(len(content) == ENDED_RECORD.itemsize, "a length")
        (_, _, flags, _, void, number, at_s), *rest = np.frombuffer(content, ENDED_RECORD)[0].item()
        latency_s, first_token_s, said_s, output_tokens, cached_tokens, endpoint = rest
        _check(number < bounds.MAX_COUNT and math.isfinite(at_s), "an outcome")
        measured_s = latency_s if math.isfinite(latency_s) else None
        _check(measured_s is None or 0 <= measured_s <= bounds.MAX_LATENCY_S, "a latency")
        _check(not math.isinf(first_token_s), "a first token")
        told = (output_tokens, cached_tokens)
        _check(math.isfinite(said_s) and all(0 <= each <= bounds.MAX_COUNT for each in told), "an answer")
        served = endpoint.partition(b"\0")[0].decode("ascii")
        answer = first_token_s, said_s, *told
        return JournalOutcome(at, number, at_s, served, measured_s, bool(flags & _OK), VOIDS[void], *answer)
    _check(kind in {RecordKind.RECORD_DECISION, RecordKind.RECORD_REFUSAL}, "a kind")
    (_, _, flags, decider, why, number, at_s), serial, key, *rest = np.frombuffer(content, REQUEST_RECORD, 1)[0].item()
    rows, deadline_s, priority, prompt_tokens, max_tokens, propensity, row, fallback_rows, n, *lengths_of = rest
    model, version, tenant, beginnings = lengths_of
    named = fallback_rows.tolist()
    _check(number < bounds.MAX_COUNT and math.isfinite(at_s), "a number")
    _check(0 <= rows <= bounds.MAX_ROWS and 0 <= priority <= bounds.MAX_PRIORITY and deadline_s >= 0, "a request")
    _check(0 <= prompt_tokens <= bounds.MAX_PROMPT_TOKENS and 0 <= max_tokens <= bounds.MAX_COUNT, "a prompt")
    _check(max(model, version, tenant) <= bounds.MAX_TEXT_BYTES and beginnings <= MOST_CHECKPOINTS, "a text")
    texts, start = [], REQUEST_RECORD.itemsize
    for length in (model, version, tenant):
        texts.append(content[start : start + length].decode("utf-8"))
        start += length
    start += -start % 8
    hashes = np.frombuffer(content, np.uint64, beginnings, start).tolist()
    lengths = np.frombuffer(content, np.float64, beginnings, start + 8 * beginnings)
    _check(bool(((lengths >= 0) & (lengths <= bounds.MAX_PROMPT_TOKENS)).all()), "a prompt")
    start += 16 * beginnings
    asked_by = key if flags & _KEYED else None, deadline_s, int(priority), texts[2], bool(flags & _SEQUENCE)
    prompt = prompt_tokens, tuple(zip(hashes, lengths.tolist(), strict=True)), max_tokens
    request = Request(texts[0], texts[1], rows, number, *asked_by, *prompt)
    if kind == RecordKind.RECORD_REFUSAL:
        _check(why in ERRORS and start == len(content), "a refusal")
        return JournalRefusal(at, request, why, at_s)
    _check(start + 8 * (_ARRAYS + 1) * n + n + -n % 8 == len(content), "a length")
    numbers = np.frombuffer(content, np.float64, (_ARRAYS + 1) * n, start).reshape(_ARRAYS + 1, n)
    eligible = np.frombuffer(content, np.uint8, n, start + numbers.nbytes)
    fallbacks = tuple(named[: named.index(-1)] if -1 in named else named)
    _check(-1 <= row < n and all(0 <= each < n for each in fallbacks), "a row")
    _check(0 <= propensity <= 1, "an answer")
    return _RawDecision(
        *(at, serial, request, at_s, decider, bool(flags & _QUESTION)),
        *(propensity, row, fallbacks, numbers, eligible),
    )


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} that cannot be")


class _Seen(View):
    """What policies saw, of many decisions one after the other: `(decisions * n,)`."""

    def __init__(
        self,
        seen: FloatArray,
        rows: FloatArray,
        keyed: BoolArray,
        prompts: FloatArray,
        now_s: FloatArray,
        estimators: EstimatorSettings,
    ) -> None:
        arrays = iter(seen)
        records: Any = [SimpleNamespace(**{name: next(arrays) for name in names}) for names in SEEN.values()]
        *states, self._decision = records
        super().__init__(tuple(states), estimators, np.empty(0, bool), rows, now_s)
        self._of_model = ...
        self._keyed, self._asked_tokens = keyed, prompts

    @part
    def _prompt_tokens(self) -> FloatArray:
        return np.asarray(self._asked_tokens[0])

    @part
    def _max_tokens(self) -> FloatArray:
        return np.asarray(self._asked_tokens[1])

    @column
    def matched_tokens(self) -> FloatArray:
        return np.where(self._prompt_tokens > 0, self._decision.matched, 0.0)

    @column
    def report_age_s(self) -> FloatArray:
        age_s: FloatArray = self._now_s - self._decision.reported_s
        return age_s

    @column
    def cached(self) -> FloatArray:
        cached: FloatArray = self._decision.cached
        return cached

    @column
    def work_behind_s(self) -> FloatArray:
        work_behind_s: FloatArray = self._decision.work_behind
        return work_behind_s

    @column
    def saving_s(self) -> FloatArray:
        return np.where(self._keyed, self._saving_s(), 0.0)


def _decisions(raw: Sequence[_RawDecision], basis: DecisionBasis) -> Iterator[JournalDecision]:
    n, count = len(basis.workers), len(raw)
    numbers = np.stack([each.numbers for each in raw], axis=1)
    _check(numbers.shape[-1] == n, f"{numbers.shape[-1]} of {n} workers")
    seen, shares, eligible = numbers[:-1], numbers[-1], np.stack([each.eligible for each in raw])
    _check(bool(np.isfinite(shares).all()) and not (eligible > 1).any(), "an answer")
    eligible = eligible.view(np.bool_)
    rows = np.repeat(np.array([each.request.rows for each in raw], np.float64), n)
    now_s = np.repeat(np.array([each.at_s for each in raw]), n)
    keyed = np.repeat(np.array([each.request.key is not None for each in raw]), n)
    prompts = [(each.request.prompt_tokens, each.request.max_tokens) for each in raw]
    asked = rows, keyed, np.repeat(np.array(prompts, np.float64).T, n, axis=1), now_s
    view = _Seen(seen.reshape(_ARRAYS, count * n), *asked, basis.estimators)
    columns = {name: getattr(view, name).reshape(count, n) for name in _COLUMNS}
    models = np.array([model_hash_of(each.request.model) for each in raw], np.uint64)[:, None]
    identities = np.stack([hash_draw(hashes, models) for hashes in (basis.name_hash, basis.kind_hash)])
    for place, each in enumerate(raw):
        policy, role = basis.deciders[each.decider]
        if policy is None:
            raise ValueError("a decider that there is not")
        seen_now = {name: columns[name][place] for name in _COLUMNS}
        shown = Columns(eligible[place], basis.weight, basis.name_hash, *identities[:, place], **seen_now)
        answered = Answered(each.request, None, cast(LiveView, shown), policy, shares[place], True, each.at_s, role)
        yield JournalDecision(each.at, answered, _made(each, policy, basis), each.question, basis)


def _made(raw: _RawDecision, policy: Policy, basis: DecisionBasis) -> Decision | None:
    if raw.row < 0:
        return None
    names = [basis.workers[row].name for row in (raw.row, *raw.fallbacks)]
    number = raw.request.number
    assert isinstance(number, int)  # arrays are for the simulator's views
    return Decision(number, names[0], tuple(names[1:]), raw.propensity, policy.name, raw.at_s)
