"""The library in the serving process: loads it without numba, and calls it."""

import ctypes
import hashlib
import pathlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import balancer.kernel
import policies
from balancer.bounds import MAX_FALLBACKS
from balancer.kernel import deciding
from balancer.kernel.block import Memory, ordinary_memory
from balancer.kernel.compiled import call as slots
from balancer.kernel.compiled.call import FLEET_STATE, MOST_BATCHES, MOST_LINES, REQUEST, Record, new_call, symbol_of
from balancer.kernel.policy_answers import Compiler, answering, options_of
from balancer.kernel.python_kernel import Kernel, Lines, Picked, lay_out_prefix, new_tuple
from balancer.kernel.state import DecisionScratch, FleetState, Options, RequestFeatures
from balancer.kernel.view import LiveFleet, LiveView
from policies.base import BoolArray, FloatArray, Policy, Prefix, Request

SOURCES = tuple(map(pathlib.Path, (*balancer.kernel.__path__, *policies.__path__)))
"""Folders of all that is compiled from its own source, and of what compiles it."""


def digest_of(*folders: pathlib.Path) -> str:
    content = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content.update(path.read_bytes())
    return content.hexdigest()[:16]


PATH = Path(__file__).with_name("kernel.so")
STAMP = "balancer_stamp"

_BUILD = "build it: python -m balancer.kernel.compiled.build"
_MOST_ANSWERS = 16
_Function = Callable[[Any, Any, Any], int]
# Slots in the order of `call`, those between them skipped.
_PICK = struct.Struct(
    f"=qdQdd{8 * (slots.NOW_S - slots.PROMPT_TOKENS - 1)}xd{8 * (slots.PICKED - slots.NOW_S - 1)}xqqdd"
)
_PICKED = tuple([struct.Struct(f"=ddd{named}q").unpack_from for named in range(MAX_FALLBACKS + 1)])
"""By how many fallbacks there are."""
_PROPENSITY_AT = 8 * slots.PROPENSITY
_REPORTED = struct.Struct("=qqqq")
_PLACED = struct.Struct(f"=d{8 * (slots.PICKED - slots.NOW_S - 1)}xq")


_LAY_OUT = REQUEST.pack_into


class _Answer(NamedTuple):
    policy: Policy
    """Kept, so that no other gets its id."""
    function: _Function | None
    """None: it is not compiled."""
    of_options: Any
    options: Record


def stamp() -> str:
    return digest_of(*SOURCES)


class Library:
    def __init__(self, path: Path = PATH) -> None:
        """Load it.

        Raises:
            LibraryError: there is none, or it was made from other sources.
        """
        if not path.exists():
            raise LibraryError(f"there is no {path.name}; {_BUILD}")
        try:
            # Without letting go of Python's lock: no call takes longer than handing that over.
            self._functions = ctypes.PyDLL(str(path))
            made_from = ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(self._functions, STAMP))).value
        except (OSError, ValueError) as error:
            raise LibraryError(f"{path.name} cannot be loaded: {error}; {_BUILD}") from error
        self.stamp = stamp()
        if made_from != self.stamp.encode():
            raise LibraryError(f"{path.name} was built from other sources; {_BUILD}")

    def function(self, name: str) -> _Function | None:
        """`int64 name(fleet_state*, options*, call*)`, of what `_pointer` makes; None: there is none of that name."""
        found = getattr(self._functions, f"balancer_{name}", None)
        if found is None:
            return None
        # No `argtypes`: to convert three numbers takes as long as many a call.
        found.restype = ctypes.c_int64
        function: _Function = found
        return function

    def answers(self, policy: Policy) -> bool:
        found = answering(policy, Compiler())
        return found is not None and self.function(symbol_of(found.name)) is not None


def _pointer(record: Record) -> Any:
    return ctypes.byref(ctypes.c_char.from_address(record.address))


class LibraryError(Exception):
    """The library cannot be used; the message says why, and what to do."""


class Compiled(Kernel):
    """The kernel of one router, by the library."""

    compiled = True

    def __init__(self, library: Library, memory: Memory = ordinary_memory) -> None:
        super().__init__()
        self._library, self._memory, self.stamp = library, memory, library.stamp
        self._slots, self._call, self._record = new_call()
        self._of_call = _pointer(self._record)
        self._decision: DecisionScratch | None = None
        self._bound: Record | None = None
        self._of_fleet_state: Any = None
        self._mask = np.zeros(0, bool)
        """`DecisionScratch.mask` of the one fleet, `(n,)`."""
        self._masked: BoolArray | None = None
        """What it is a copy of."""
        self._may = 0
        """How many are in there."""
        self._named = 0
        """How many fallbacks the last pick had."""
        self._request, self._number = Request(""), 0
        """That a policy decides in Python."""
        none = Record(Options(np.zeros(1)))
        self._no_options, self._of_none = none, _pointer(none)
        self._answers: dict[int, _Answer] = {}
        self._keep_fresh, self._fresh_until_s = self._fixed("keep_fresh"), self._fixed("fresh_until_s")
        self._admit, self._take = self._fixed("admit"), self._fixed("take")
        self._count_out, self._count_peer = self._fixed("count_out"), self._fixed("count_peer")
        self._finish = self._fixed("finish")
        self._take_report, self._look_up_key = self._fixed("take_report"), self._fixed("look_up")
        self._fade, self._match_prompt = self._fixed("fade"), self._fixed("match")
        self._count_peer_prompt = self._fixed("count_peer_prompt")

    def memory(self, size_bytes: int) -> Any:
        return self._memory(size_bytes)

    def forget(self) -> None:
        self._masked = None

    def _fixed(self, name: str) -> _Function:
        function = self._library.function(name)
        if function is None:
            raise LibraryError(f"the library lacks {name}; {_BUILD}")
        return function

    def _bind(self, x: FleetState) -> None:
        """Look up where the arrays are. All of them are replaced together with the decision."""
        if x.decision is not self._decision:
            self._bound = Record(x, FLEET_STATE)
            self._of_fleet_state, self._decision = _pointer(self._bound), x.decision
            self._mask, self._masked = x.decision.mask[0], None
            self._answers.clear()  # Their options have room for as many workers as there were.

    def _lay_out(
        self,
        x: FleetState,
        request: Request,
        number: int,
        column: int,
        mask: BoolArray | None,
        now_s: float,
        how: int,
        one: int = -1,
    ) -> None:
        """The request, and who may serve it; None: whoever stands there."""
        key, prompt, most = request.key, request.prompt_tokens, request.max_tokens
        rows, deadline_s, priority, seed = request.rows, request.deadline_s, request.priority, self.seed
        slots, made = self._slots, (deadline_s, priority, number, now_s, seed, how, one)
        if key is None:
            _LAY_OUT(slots, 0, column, rows, 0, 0.0, prompt, most, *made)
        else:
            _LAY_OUT(slots, 0, column, rows, key, 1.0, prompt, most, *made)
        if prompt:
            self.lay_out_prompt(x, request, column)
        if mask is not None and mask is not self._masked:
            # Masks are replaced and never written to, so the same one has the same in it.
            self._mask[:] = mask
            self._know(mask)

    def _know(self, mask: BoolArray) -> None:
        self._masked, self._may = mask, int(np.count_nonzero(mask))

    def _lay_out_view(self, x: FleetState, request: Request, view: LiveView) -> None:
        assert isinstance(request.number, int)  # arrays are for the simulator's views
        self._lay_out(x, request, request.number, view.column, view.mask, view.at_s, 0)

    def keep_fresh(self, x: FleetState, servable: BoolArray, now_s: float) -> BoolArray:
        self._bind(x)
        self._mask[:] = servable
        self._call.numbers[slots.NOW_S] = now_s
        self._keep_fresh(self._of_fleet_state, self._of_none, self._of_call)
        mask = self._mask.copy()
        self._know(mask)
        return mask

    def fresh_until_s(self, x: FleetState, now_s: float) -> float:
        self._bind(x)
        self._call.numbers[slots.NOW_S] = now_s
        self._fresh_until_s(self._of_fleet_state, self._of_none, self._of_call)
        return float(self._call.numbers[slots.NOW_S])

    def admit(self, x: FleetState, request: Request, view: LiveView) -> tuple[int, BoolArray]:
        self._bind(x)
        self._lay_out_view(x, request, view)
        count = self._admit(self._of_fleet_state, self._of_none, self._of_call)
        left = self._mask.copy()
        self._know(left)
        return count, left

    def answer(self, x: FleetState, policy: Policy, request: Request, view: LiveView) -> FloatArray | None:
        """See `Kernel`; None for a policy that is not compiled."""
        found = self._found_answer(x, policy)
        if found.function is None:
            return None
        self._lay_out_view(x, request, view)
        found.function(self._of_fleet_state, found.of_options, self._of_call)
        answer: FloatArray = x.decision.shares[0].copy()
        return answer

    def decide(
        self,
        x: LiveFleet,
        policy: Policy,
        request: Request,
        number: int,
        column: int,
        mask: BoolArray,
        now_s: float,
        how: int,
        one: int = -1,
    ) -> Picked:
        if x.decision is not self._decision:
            self._bind(x)
        _, function, of_options, _ = self._answers.get(id(policy)) or self._look_up(policy, x.decision.mask.shape[1])
        if function is None:
            self._request, self._number, self._masked = request, number, None
            picked = super().decide(x, policy, request, number, column, mask, now_s, how, one)
            self._masked = None
            return picked
        self.policy_answer = None
        self._lay_out(x, request, number, column, mask, now_s, how, one)
        row = function(self._of_fleet_state, of_options, self._of_call)
        # As many fallbacks as before, mostly.
        found = _PICKED[self._named](self._slots, _PROPENSITY_AT)
        if found[2] != self._named:
            self._named = int(found[2])
            found = _PICKED[self._named](self._slots, _PROPENSITY_AT)
        if row < 0 or one >= 0 or found[1] != self._may:
            # Not all that were in the mask are left.
            self._masked = None
        return new_tuple(Picked, (row, found[0], found[3:], found[1]))

    def _steps(self) -> dict[Any, Any]:
        return {deciding.admit: self._admit_step, deciding.take: self._take_step}

    def _admit_step(self, x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float, found: Any) -> int:
        self._lay_out(x, self._request, self._number, request.model, self._masked, now_s, 0)
        return self._admit(self._of_fleet_state, self._of_none, self._of_call)

    def _take_step(self, x: FleetState, e: int, first: int, w: int, request: RequestFeatures, now_s: float) -> None:
        self.take(x, w, request.model, self._request, now_s)

    @property
    def refused_at(self) -> float:
        return float(self._call.numbers[slots.REFUSED_AT])

    def _found_answer(self, x: FleetState, policy: Policy) -> _Answer:
        if x.decision is not self._decision:
            self._bind(x)
        return self._answers.get(id(policy)) or self._look_up(policy, x.decision.mask.shape[1])

    def _look_up(self, policy: Policy, workers: int) -> _Answer:
        found = answering(policy, Compiler())
        function = None if found is None else self._library.function(symbol_of(found.name))
        options = self._no_options if found is None else Record(options_of(found, workers))
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers.clear()
        known = self._answers[id(policy)] = _Answer(policy, function, _pointer(options), options)
        return known

    def _lay_out_pick(
        self, x: FleetState, column: int, rows: float, key: int | None, now_s: float, row: int, prompt: float = 0.0
    ) -> None:
        self._bind(x)
        keyed = float(key is not None)
        _PICK.pack_into(self._slots, 0, column, rows, key or 0, keyed, prompt, now_s, row, -1, 0.0, False)

    def take(self, x: FleetState, row: int, column: int, request: Request, now_s: float) -> None:
        key = request.key
        assert key is None or isinstance(key, int)  # arrays are for the simulator's views
        self._lay_out_pick(x, column, float(request.rows), key, now_s, row, float(request.prompt_tokens))
        self.lay_out_prompt(x, request, column)
        self._take(self._of_fleet_state, self._of_none, self._of_call)

    def _match(self, x: FleetState, column: int) -> None:
        self._bind(x)
        self._call.wholes[slots.MODEL] = column
        self._match_prompt(self._of_fleet_state, self._of_none, self._of_call)

    def count_peer_prompt(
        self, x: FleetState, row: int, column: int, tokens: float, prefix: Prefix, now_s: float
    ) -> None:
        self._lay_out_pick(x, column, 1.0, None, now_s, row, tokens)
        lay_out_prefix(x, prefix)
        self._count_peer_prompt(self._of_fleet_state, self._of_none, self._of_call)

    def count_peer(self, x: FleetState, row: int, column: int, rows: float, ended: bool, now_s: float) -> None:
        self._bind(x)
        _PICK.pack_into(self._slots, 0, column, rows, 0, 0.0, 0.0, now_s, row, -1, 0.0, ended)
        self._count_peer(self._of_fleet_state, self._of_none, self._of_call)

    def count_out(self, x: FleetState, row: int, column: int, rows: float, now_s: float) -> None:
        self._lay_out_pick(x, column, rows, None, now_s, row)
        self._count_out(self._of_fleet_state, self._of_none, self._of_call)

    def look_up(self, x: FleetState, column: int, rows: float, key: int, now_s: float) -> FloatArray:
        self._lay_out_pick(x, column, rows, key, now_s, -1)
        self._look_up_key(self._of_fleet_state, self._of_none, self._of_call)
        found: FloatArray = x.decision.cached[0].copy()
        return found

    def finish(
        self,
        x: FleetState,
        row: int,
        column: int,
        rows: float,
        key: int | None,
        served: int,
        latency_s: float,
        ok: bool,
        now_s: float,
    ) -> None:
        if x.decision is not self._decision:
            self._bind(x)
        if key is None:
            _PICK.pack_into(self._slots, 0, column, rows, 0, 0.0, 0.0, now_s, row, served, latency_s, ok)
        else:
            _PICK.pack_into(self._slots, 0, column, rows, key, 1.0, 0.0, now_s, row, served, latency_s, ok)
        self._finish(self._of_fleet_state, self._of_none, self._of_call)

    def take_report(
        self, x: FleetState, row: int, begins: bool, lines: Lines, batches: Lines, balancers: int, now_s: float
    ) -> bool:
        count, executed, call = len(lines), len(batches), self._call
        if count > MOST_LINES or executed > MOST_BATCHES:
            return super().take_report(x, row, begins, lines, batches, balancers, now_s)
        self._bind(x)
        if count:
            call.lines[:count] = lines
        if executed:
            call.batches[:executed] = batches
        _REPORTED.pack_into(self._slots, 8 * slots.LINES, count, executed, balancers, begins)
        _PLACED.pack_into(self._slots, 8 * slots.NOW_S, now_s, row)
        return bool(self._take_report(self._of_fleet_state, self._of_none, self._of_call))

    def fade(self, x: FleetState, share: float) -> None:
        self._bind(x)
        self._call.numbers[slots.SHARE] = share
        self._fade(self._of_fleet_state, self._of_none, self._of_call)
