"""Probabilities of a policy that is not compiled, published for Envoys, which decide by them.

Some 100 times a second, and more often where many requests come, the books are read and the policy is asked as if the
next requests came at once: it answers, its answer is counted in as so many picks, it answers again, and so on, level by
level. A table tells how many requests would be in flight at each worker after each level. What Envoys have sent since,
and what has ended, they know exactly, and draw by what each worker lacks of that. So a policy that puts everything on
the least loaded worker has the next requests go where it would have them go, and not all of them to one. An answer that
does not depend on what is sent is drawn by as it is.

There is a table for each model and version in use, and for each number of rows and each priority where the policy reads
these; of each policy that may decide, where a guard, a rollout or a shadow is there. What a table cannot stand for, the
balancer is asked about.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.core.answering import answer_alone
from balancer.core.fleet import Fleet
from balancer.core.view import LiveView
from balancer.front.directory import UNHEARD_OF, hash_of
from balancer.front.layouts import LEVELS, MOST_PUBLISHED, TABLE, TABLES, Decider, Reads
from balancer.front.snapshot import Snapshot
from balancer.front.state import State
from balancer.native.library import Library
from policies.base import BoolArray, FloatArray, Policy, Request

PERIOD_S, _LEAST_S = 0.01, 0.004
"""Between two rounds, at most and at least."""
_MOST_BLOCKED_S = 0.01
"""That a round may take while nothing else of this process runs; what is not done then is first in the next."""
_MANY = 20
"""Requests after which there is another round, if not before."""
SHARE = 0.25
"""Of a processor, that computing may take at most: a policy that takes longer is asked more rarely, in fewer levels."""
_UNUSED_S = 1.0
"""After which a table is given up."""
_IDLE_S = 0.05
"""After which another may take its place, where there is no room."""
MOST_ALIKE = TABLES // 2
"""Tables of one model and version."""
_AGAIN_S = 1.0
"""Until a policy is asked again that gave no valid answer."""
_MOST_AHEAD = 512
"""Requests that a table suffices for."""
_AHEAD = 1.5
"""Of the requests expected until the next round, that a table is to suffice for: they come in bursts."""
_MOST_HASHES = _MOST_KINDS = 4096
_ALL = int(sum(Reads))
_HASH_OF_ANY = hash_of(UNHEARD_OF.encode(), b"")
_READS = {
    "rows": Reads.READS_ROWS,
    "priority": Reads.READS_PRIORITY,
    "key": Reads.READS_KEY,
    "sequence": Reads.READS_KEY,
    "deadline_s": Reads.READS_DEADLINE,
    "tenant": Reads.READS_TENANT,
    "model": Reads.READS_NAME,
    "version": Reads.READS_NAME,
}


class _Watched(Request):
    """A request that knows what was read of it."""

    __slots__ = ("seen",)
    seen: set[str]

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)


def _watched(like: Request, number: int) -> _Watched:
    made = _Watched.__new__(_Watched)
    object.__setattr__(made, "seen", set())
    made.__init__(like.model, like.version, like.rows, number, priority=like.priority)  # type: ignore[misc]  # frozen
    object.__getattribute__(made, "seen").clear()
    return made


@dataclass(slots=True, eq=False)
class _Place:
    """A table, and what its requests have in common."""

    decider: int
    """`Decider`, whose policy it is of."""
    request: Request
    hash: int
    column: int
    used_s: float
    reads: int = _ALL
    """As the last round found; before, anything."""
    resume_s: float = 0.0
    rate: float = 0.0
    """Requests a second."""
    sent: int = -1
    """When the books were read; below 0: not known yet."""
    made_s: float = 0.0
    """When its table was last computed."""
    eligible: BoolArray = field(default_factory=lambda: np.zeros(0, bool))
    table: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(1, TABLE))
    targets: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    uptos: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Of the table, as the one before."""
    open: bool = False
    """Whether there may be another level."""
    wanted: float = 1.0
    """Requests that it is to suffice for."""
    upto: int = 0
    """Requests that its levels suffice for so far."""
    fixed: bool = True
    """Whether all answers so far were the same, while what is in flight was not."""
    first: FloatArray = field(default_factory=lambda: np.zeros(0))
    """The first answer."""
    ahead: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Of the requests of all levels so far, how many each worker is to get."""
    counted: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Picks that stand for these in the books."""

    def __post_init__(self) -> None:
        """Find the arrays in the table."""
        self.targets, self.uptos = self.table["targets"][0], self.table["upto"][0]

    def is_for(self, decider: int, hashed: int, request: Request) -> bool:
        """Whether the table answers to such requests."""
        alike = not self.reads & Reads.READS_ROWS or request.rows == self.request.rows
        return self.decider == decider and self.hash == hashed and alike and self._of_priority(request)

    def _of_priority(self, request: Request) -> bool:
        return not self.reads & Reads.READS_PRIORITY or request.priority == self.request.priority


class Tables:
    """All tables of one balancer."""

    def __init__(self, state: State, library: Library) -> None:
        self._state, self._snapshot = state, Snapshot(library)
        self._places: dict[int, _Place] = {}
        self._kinds: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self.most_levels = LEVELS
        self.wait_s = PERIOD_S
        """Until the next round."""
        self.asked = 0
        """Answers asked of policies since the start."""
        self.seconds = 0.0
        """That computing took since the start."""
        self._each_s = 0.0
        """That one answer takes, about."""
        self._began_s = 0.0
        self._made: list[_Place] = []
        """In this round."""
        self._revision = -1
        self._hashes: dict[tuple[str, str], int | None] = {}
        """Of entries of the directory, as of the fleet's revision."""

    def __len__(self) -> int:
        return len(self._places)

    def clear(self) -> None:
        """With the lock held: another policy decides, or by other settings. What is in use stays known."""
        self._state.clear_tables()
        for place in self._places.values():
            place.reads, place.resume_s = _ALL, 0.0
        self._each_s = 0.0

    def wish(self, request: Request, fleet: Fleet, now_s: float, decider: int = Decider.POLICY) -> None:
        """Ask for a table for requests like this one, by that policy, from the next round on. With the lock held, after
        the balancer itself decided.

        Where there is no room, for want of tables or since one model has its share, requests that come again have the
        place of the table that is drawn by least, once nobody drew by it for a while: who sends ever other rows or
        priorities takes no table that is in use, and keeps nobody from one.
        """
        hashed = self._hash_of(request.model, request.version, fleet)
        if hashed is None:
            return
        if any(place.is_for(decider, hashed, request) for place in self._places.values()):
            return
        alike = [number for number, place in self._places.items() if place.hash == hashed]
        number = next((number for number in range(TABLES) if number not in self._places), None)
        if number is None or len(alike) >= MOST_ALIKE:
            if not self._asked_before((decider, hashed, request.rows, request.priority)):
                return
            number = self._least_used(alike if len(alike) >= MOST_ALIKE else list(self._places))
            if number is None:
                return
            self._give_up(number)
        like = Request(request.model, request.version, request.rows, priority=request.priority)
        column = fleet.models.get(request.model, 0)
        self._places[number] = _Place(decider, like, hashed, column, now_s)

    def _asked_before(self, kind: tuple[object, ...]) -> bool:
        """Whether such a request was among the last that there was no room for."""
        known = kind in self._kinds
        self._kinds[kind] = None
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)
        return known

    def _least_used(self, among: list[int]) -> int | None:
        """Of these, the table drawn by least; None: all were in use at the last round, or are too new to tell."""
        idle = [number for number in among if self._snapshot.at_s - self._places[number].used_s > _IDLE_S]
        return min(idle, key=lambda number: (self._places[number].rate, self._places[number].used_s), default=None)

    def _hash_of(self, model: str, version: str, fleet: Fleet) -> int | None:
        """Of the directory's entry for it; None: there is none."""
        if fleet.revision != self._revision or len(self._hashes) > _MOST_HASHES:
            self._revision = fleet.revision
            self._hashes.clear()
        key = model, version
        if key not in self._hashes:
            listed = fleet.listed()
            if key in listed:
                self._hashes[key] = hash_of(*(text.encode("utf-8", "surrogatepass") for text in key))
            else:
                unheard_of = not fleet.settings.reports_required and (model, "") not in listed
                self._hashes[key] = _HASH_OF_ANY if unheard_of else None
        return self._hashes[key]

    def read(self, fleet: Fleet, now_s: float) -> None:
        """Take over the books, and what was sent by the tables; with the lock held."""
        elapsed_s = max(now_s - self._snapshot.at_s, 1e-3)
        self._snapshot.read(fleet, now_s)
        for number, place in list(self._places.items()):
            before, place.sent = place.sent, self._state.table_sent(number)
            rate = max(place.sent - before, 0) / elapsed_s if before >= 0 else 0.0
            place.rate = max(rate, 0.8 * place.rate)
            if rate:
                place.used_s = now_s
            if now_s - place.used_s > _UNUSED_S or (place.request.model and not fleet.knows(place.request.model)):
                self._give_up(number)
                continue
            place.column = fleet.models.get(place.request.model, 0)
            place.eligible = fleet.eligible(place.request.model, place.request.version, now_s)

    def _give_up(self, number: int) -> None:
        place = self._places.pop(number)
        place.table["levels"] = 0
        self._state.put_table(number, place.table)

    def compute(
        self,
        policies: Mapping[int, Policy],
        number: int,
        failed: Callable[[Policy, str], None],
        took: Callable[[int, float], None],
    ) -> None:
        """Ask the policies. Without the lock: they may take their time.

        Args:
            policies: That decide, by `Decider`.
            number: Of the next decision.
            failed: Is told what was wrong with an answer.
            took: Is told how long each answer took, in seconds.
        """
        began_s, self._began_s, asked = time.thread_time(), time.perf_counter(), self.asked
        now_s = self._snapshot.at_s
        due = [place for place in self._places.values() if place.resume_s <= now_s and place.decider in policies]
        due.sort(key=lambda place: place.made_s)
        period_s = min(max(_MANY / max(sum(place.rate for place in due), 1e-9), _LEAST_S), PERIOD_S)
        most = int(period_s * SHARE / max(self._each_s, 1e-6)) // max(len(due), 1)
        levels = min(max(most, 1), self.most_levels)
        self._made = []
        for level in range(levels):
            for place in due if level == 0 else self._made:
                if self.asked > asked and self._took_s() > _MOST_BLOCKED_S:
                    break
                if level == 0:
                    self._begin(place)
                if not place.open:
                    continue
                begun_s, before = time.perf_counter(), self.asked
                failure = self._step(place, level, levels, policies[place.decider], number)
                if self.asked > before:
                    took(place.decider, time.perf_counter() - begun_s)
                if failure:
                    place.table["levels"], place.resume_s, place.open = 0, now_s + _AGAIN_S, False
                    failed(policies[place.decider], failure)
        took_s = time.thread_time() - began_s
        self.seconds += took_s
        if self.asked > asked:
            each_s = took_s / (self.asked - asked)
            self._each_s = each_s if not self._each_s else 0.9 * self._each_s + 0.1 * each_s
        if self._took_s() > _MOST_BLOCKED_S:
            took_s = self._took_s()
        self.wait_s = max(period_s - took_s, took_s * (1 / SHARE - 1))

    def _took_s(self) -> float:
        """This round so far, waiting included."""
        return time.perf_counter() - self._began_s

    def _begin(self, place: _Place) -> None:
        n, place.made_s = self._snapshot.workers, self._snapshot.at_s
        self._made.append(place)
        place.wanted, place.upto = min(place.rate * self.wait_s * _AHEAD + 1, _MOST_AHEAD), 0
        place.ahead, place.counted, place.open = np.zeros(n), np.zeros(n), n <= MOST_PUBLISHED
        place.reads = 0
        place.table["levels"] = 0

    def _step(self, place: _Place, level: int, levels: int, policy: Policy, number: int) -> str:
        """One more of so many levels; returns what is wrong with the answer."""
        books, request = self._snapshot, place.request
        view = books.view(request, place.column, place.eligible)
        if view is None or not np.count_nonzero(view.mask):
            place.open = False
            return ""
        watched = _watched(request, number + int(place.counted.sum()))
        probabilities, failure = answer_alone(policy, watched, view)
        self.asked += 1
        if probabilities is None:
            return failure
        place.reads |= self._read_of(watched, view)
        if not probabilities.any():
            # It sheds, and says so of each request.
            place.open = False
            return ""
        # Until the likeliest worker has got one request, unless there are too few levels for that.
        even = math.ceil((place.wanted - place.upto) / (levels - level))
        size = max(even, int(1 / probabilities.max() + 1e-9), 1)
        place.fixed = level > 0 and place.fixed and bool((probabilities == place.first).all())
        if level == 0:
            place.first, place.fixed = probabilities.copy(), True
        place.upto += size
        place.ahead += size * probabilities
        # What tables of other models had counted in before belongs to where this one begins.
        others = books.queue.in_flight - place.counted
        np.multiply(others + place.ahead, place.ahead > 0, out=place.targets[level, : len(others)])
        place.uptos[level] = place.upto + books.counted - place.counted.sum()
        place.table["levels"] = level + 1
        place.open = place.upto < place.wanted or level == 0
        if place.open:
            self._count(place)
        return ""

    def _read_of(self, request: _Watched, view: LiveView) -> int:
        found = {_READS[name] for name in object.__getattribute__(request, "seen") & _READS.keys()}
        if "_rows" in vars(view):
            found.add(Reads.READS_ROWS)
        if {"cached", "saving_s"} & vars(view).keys():
            found.add(Reads.READS_KEY)
        if self._snapshot.settings.limits.any:
            # Who is full differs by it.
            found.add(Reads.READS_PRIORITY)
        return int(sum(found))

    def _count(self, place: _Place) -> None:
        """Have as many picks in the books, at the same workers but for rounding."""
        whole = np.floor(place.ahead + 1e-9)
        missing = round(place.upto - whole.sum())
        if missing > 0:
            whole[np.argpartition(whole - place.ahead, missing - 1)[:missing]] += 1
        for row in np.flatnonzero(whole > place.counted).tolist():
            for _ in range(int(whole[row] - place.counted[row])):
                self._snapshot.count_in(row, place.column, float(place.request.rows))
        place.counted = np.maximum(whole, place.counted)

    def put(self) -> None:
        """Have Envoys decide by what was computed; with the lock held, nothing having been laid out anew since."""
        seen: list[_Place] = []
        for number, place in list(self._places.items()):
            if place.reads != _ALL and any(other.is_for(place.decider, place.hash, place.request) for other in seen):
                self._give_up(number)
                continue
            seen.append(place)
            if place not in self._made:
                continue
            table = place.table
            if place.reads & Reads.READS_NAME and place.hash == _HASH_OF_ANY:
                table["levels"] = 0
            if place.fixed and table["levels"][0] > 1:
                table["fixed"], table["levels"] = 1, 1
                table["targets"][0, 0, : len(place.first)] = place.first
            else:
                table["fixed"] = 0
            for name, value in {
                **{"hash": place.hash, "column": place.column, "decider": place.decider, "reads": place.reads},
                "rows": place.request.rows,
                **{"priority": place.request.priority, "generation": self._snapshot.generation},
                **{"workers": self._snapshot.workers, "at_s": self._snapshot.at_s},
            }.items():
                table[name] = value
            table["base"][0, : self._snapshot.workers] = self._snapshot.before
            self._state.put_table(number, table)
