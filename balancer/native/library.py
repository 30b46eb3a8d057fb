"""The library in the serving process: loads it without numba, and calls it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from balancer.core.bounds import MAX_FALLBACKS
from balancer.core.kernel.answers import Compiler, answering, options_of
from balancer.core.kernel.block import Memory, ordinary_memory
from balancer.core.kernel.plain import Kernel, Lines, Picked, Sight, Within
from balancer.core.kernel.state import Books, Desk, Options
from balancer.native import call as slots
from balancer.native.call import ASKED, MOST_BATCHES, MOST_LINES, new_call, symbol_of
from balancer.native.record import BOOKS, Record
from balancer.native.sources import SOURCES, digest_of
from policies.base import BoolArray, FloatArray, Policy, Request

PATH = Path(__file__).with_name("kernel.so")
STAMP = "balancer_stamp"

_BUILD = "build it: python -m balancer.native.build"
_MOST_ANSWERS = 16
_Function = Callable[[int, int, int], int]
# Slots in the order of `call`, those between them skipped.
_COUNTED = struct.Struct(f"=qd{8 * (slots.NOW_S - slots.ROWS - 1)}xd{8 * (slots.PICKED - slots.NOW_S - 1)}xq")
_FINISHED = struct.Struct(f"{_COUNTED.format}qdd")
_PICKED = struct.Struct("=dqq")
_FALLBACKS = tuple([struct.Struct(f"={named}q") for named in range(MAX_FALLBACKS + 1)])
"""By how many there are."""
_WHOLE = struct.Struct("=q")
_REPORTED = struct.Struct("=qqq")
_PLACED = struct.Struct(f"=d{8 * (slots.PICKED - slots.NOW_S - 1)}xq")
_LEARNED = struct.Struct(f"={8 * slots.NOW_S}xd{8 * (slots.PICKED - slots.NOW_S - 1)}xqqdd")


def stamp() -> str:
    """Tells the sources that a library must be made from to fit."""
    return digest_of(*SOURCES)


class Library:
    """The compiled functions by name."""

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
        """Of the sources that it was made from."""
        if made_from != self.stamp.encode():
            raise LibraryError(f"{path.name} was built from other sources; {_BUILD}")

    def function(self, name: str) -> _Function | None:
        """`int64 name(books*, options*, call*)`; None: it has none of that name."""
        found = getattr(self._functions, f"balancer_{name}", None)
        if found is None:
            return None
        found.argtypes = [ctypes.c_void_p] * 3
        found.restype = ctypes.c_int64
        function: _Function = found
        return function

    def answers(self, policy: Policy) -> bool:
        """Whether it has the policy's answer."""
        found = answering(policy, Compiler())
        return found is not None and self.function(symbol_of(found.name)) is not None


class LibraryError(Exception):
    """The library cannot be used; the message says why, and what to do."""


class Compiled(Kernel):
    """The kernel of one router, by the library."""

    compiled = True

    def __init__(self, library: Library, memory: Memory = ordinary_memory) -> None:
        """`memory`: for the block of the fleet whose kernel it is."""
        self._library, self._memory, self.stamp = library, memory, library.stamp
        self._slots, self._call, self._record = new_call()
        self._of_call = self._record.address
        self._desk: Desk | None = None
        self._bound: Record | None = None
        self._of_books = 0
        self._masked: BoolArray | None = None
        """What `Desk.mask` is a copy of."""
        self._answered: FloatArray | None = None
        """The last answer, while nothing came after it; `_row` was picked by it."""
        self._row = -1
        none = Record(Options(np.zeros(1)))
        self._no_options, self._of_none = none, none.address
        self._answers: dict[int, tuple[Policy, _Function | None, Record]] = {}
        self._keep_fresh, self._fresh_until_s = self._fixed("keep_fresh"), self._fixed("fresh_until_s")
        self._keep = self._fixed("keep_within_limits")
        self._pick = self._fixed("pick")
        self._count_in, self._count_out = self._fixed("count_in"), self._fixed("count_out")
        self._finish = self._fixed("finish")
        self._take_report = self._fixed("take_report")
        self._learn, self._fade = self._fixed("learn_of_pick"), self._fixed("fade")

    def memory(self, size_bytes: int) -> Any:
        """See `Kernel`."""
        return self._memory(size_bytes)

    def _fixed(self, name: str) -> _Function:
        function = self._library.function(name)
        if function is None:
            raise LibraryError(f"the library lacks {name}; {_BUILD}")
        return function

    def _bind(self, x: Books) -> None:
        """Look up where the arrays are. All of them are replaced together with the desk."""
        if x.desk is not self._desk:
            self._bound = Record(x, BOOKS)
            self._of_books, self._desk, self._masked = self._bound.address, x.desk, None
            self._answers.clear()  # Their options have room for as many workers as there were.

    def _lay_out(self, x: Books, request: Request, number: int, column: int, mask: BoolArray, now_s: float) -> None:
        """The request, and who may serve it."""
        key = request.key
        ASKED.pack_into(
            *(self._slots, 0, column, request.rows, key or 0, key is not None),
            *(request.deadline_s, request.priority, number, now_s, self.seed),
        )
        if mask is not self._masked:
            # Masks are replaced and never written to, so the same one has the same in it.
            x.desk.mask[0], self._masked = mask, mask

    def _lay_out_view(self, x: Books, request: Request, view: Sight) -> None:
        """A request that has its number."""
        assert isinstance(request.number, int)  # arrays are for the simulator's views
        self._lay_out(x, request, request.number, view.column, view.mask, view.at_s)

    def keep_fresh(self, x: Books, servable: BoolArray, now_s: float) -> BoolArray:
        """See `Kernel`."""
        self._bind(x)
        x.desk.mask[0] = servable
        self._call.numbers[slots.NOW_S] = now_s
        self._keep_fresh(self._of_books, self._of_none, self._of_call)
        mask = self._masked = x.desk.mask[0].copy()
        return mask

    def fresh_until_s(self, x: Books, now_s: float) -> float:
        """See `Kernel`."""
        self._bind(x)
        self._call.numbers[slots.NOW_S] = now_s
        self._fresh_until_s(self._of_books, self._of_none, self._of_call)
        return float(self._call.numbers[slots.NOW_S])

    def keep_within_limits(self, x: Books, request: Request, view: Sight) -> Within:
        """See `Kernel`."""
        self._bind(x)
        self._lay_out_view(x, request, view)
        count = self._keep(self._of_books, self._of_none, self._of_call)
        left = self._masked = x.desk.mask[0].copy()
        return Within(left, not count)

    def answer(self, x: Books, policy: Policy, request: Request, view: Sight) -> FloatArray | None:
        """See `Kernel`; None for a policy that is not compiled."""
        function, options = self._found(x, policy)
        if function is None:
            return None
        self._lay_out_view(x, request, view)
        self._row = function(self._of_books, options.address, self._of_call)
        self._answered = answer = x.desk.shares[0].copy()
        return answer

    def decide(
        self, x: Books, policy: Policy, request: Request, number: int, column: int, mask: BoolArray, now_s: float
    ) -> Picked | None:
        """See `Kernel`."""
        function, options = self._found(x, policy)
        if function is None:
            return None
        self._lay_out(x, request, number, column, mask, now_s)
        whole = slots.WHOLE_SEQUENCE if request.sequence else slots.WHOLE_REQUEST
        _WHOLE.pack_into(self._slots, 8 * slots.WHOLE, whole)
        row = function(self._of_books, options.address, self._of_call)
        _WHOLE.pack_into(self._slots, 8 * slots.WHOLE, slots.STEP)
        self._answered = None
        # The limits may have narrowed it.
        self._masked = None
        return self._as_picked(row)

    def _found(self, x: Books, policy: Policy) -> tuple[_Function | None, Record]:
        """The compiled answer, if there is one, and its options."""
        self._bind(x)
        known = self._answers.get(id(policy))
        if known is None:
            known = self._look_up(policy, x.desk.mask.shape[1])
        return known[1:]

    def _look_up(self, policy: Policy, workers: int) -> tuple[Policy, _Function | None, Record]:
        found = answering(policy, Compiler())
        function = None if found is None else self._library.function(symbol_of(found.name))
        options = self._no_options if found is None else Record(options_of(found, workers))
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers.clear()
        # The policy is kept, so that no other gets its id.
        known = self._answers[id(policy)] = policy, function, options
        return known

    def pick(self, x: Books, shares: FloatArray, request: Request, view: Sight) -> Picked | None:
        """See `Kernel`."""
        # The compiled answers have picked already, for themselves.
        if shares is not self._answered:
            self._bind(x)
            self._lay_out_view(x, request, view)
            x.desk.shares[0] = shares
            self._row = self._pick(self._of_books, self._of_none, self._of_call)
        self._answered = None
        return self._as_picked(self._row)

    def _as_picked(self, row: int) -> Picked | None:
        if row < 0:
            return None
        propensity, among, named = _PICKED.unpack_from(self._slots, 8 * slots.PROPENSITY)
        return Picked(row, propensity, _FALLBACKS[named].unpack_from(self._slots, 8 * slots.FALLBACKS), among)

    def count_in(self, x: Books, row: int, column: int, rows: float, now_s: float) -> None:
        """See `Kernel`."""
        self._bind(x)
        _COUNTED.pack_into(self._slots, 0, column, rows, now_s, row)
        self._count_in(self._of_books, self._of_none, self._of_call)

    def count_out(self, x: Books, row: int, column: int, rows: float, now_s: float) -> None:
        """See `Kernel`."""
        self._bind(x)
        _COUNTED.pack_into(self._slots, 0, column, rows, now_s, row)
        self._count_out(self._of_books, self._of_none, self._of_call)

    def finish(
        self, x: Books, row: int, column: int, rows: float, served: int, latency_s: float, ok: bool, now_s: float
    ) -> None:
        """See `Kernel`."""
        self._bind(x)
        _FINISHED.pack_into(self._slots, 0, column, rows, now_s, row, served, latency_s, ok)
        self._finish(self._of_books, self._of_none, self._of_call)

    def learn_of_pick(self, x: Books, picked: int, served: int, latency_s: float, ok: bool, now_s: float) -> None:
        """See `Kernel`."""
        self._bind(x)
        _LEARNED.pack_into(self._slots, 0, now_s, picked, served, latency_s, ok)
        self._learn(self._of_books, self._of_none, self._of_call)

    def take_report(self, x: Books, row: int, lines: Lines, batches: Lines, balancers: int, now_s: float) -> None:
        """See `Kernel`."""
        count, executed, call = len(lines), len(batches), self._call
        if count > MOST_LINES or executed > MOST_BATCHES:
            super().take_report(x, row, lines, batches, balancers, now_s)
            return
        self._bind(x)
        if count:
            call.lines[:count] = lines
        if executed:
            call.batches[:executed] = batches
        _REPORTED.pack_into(self._slots, 8 * slots.LINES, count, executed, balancers)
        _PLACED.pack_into(self._slots, 8 * slots.NOW_S, now_s, row)
        self._take_report(self._of_books, self._of_none, self._of_call)

    def fade(self, x: Books, share: float) -> None:
        """See `Kernel`."""
        self._bind(x)
        self._call.numbers[slots.SHARE] = share
        self._fade(self._of_books, self._of_none, self._of_call)
