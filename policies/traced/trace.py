"""What a policy of a third party computes, as a program: its function is called once with stand-ins for arrays.

A branch on a number of the fleet is taken both ways. What fits is held to the function itself on fleets of many sizes;
what does not fit stays NumPy, for a reason in words.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from policies.base import FloatArray, Policy, Request
from policies.columns import QUANTITIES, Columns
from policies.costs import ONE, CostPolicy, parameters
from policies.hashing import mix_array, unit_array
from policies.traced.program import CHOICES, FACTS, OF_REQUEST, READS, answered, checked
from policies.traced.symbol import Symbol, line_of
from policies.traced.tape import Line, Tape, Untraceable, encoded

TOLERANCE = 1e-12
"""Between probabilities of a program and of the function that it was made of."""
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 33, 50)
_ROUNDS = 3
_MOST_WAYS = 16
_OUTSIDE = ("time", "io", "_io", "posix", "_random", "numpy.random", "_thread", "_socket", "select")
"""Modules whose functions depend on more than a request and a fleet."""


class Traced(NamedTuple):
    program: FloatArray | None
    reason: str = ""


def traced(policy: Policy) -> Traced:
    """The policy as a program; found at the first call, some milliseconds, and kept with the policy."""
    kept = policy.__dict__.get("_traced")
    if kept is None:
        # Not a field of it: policies are frozen, and this is no option.
        kept = policy.__dict__["_traced"] = _traced(policy)
    assert isinstance(kept, Traced)
    return kept


def _traced(policy: Policy) -> Traced:
    reason = ""
    # As the simulator calls it, with axes in front, which needs no branch on their count; else as production does.
    for axes in (2, 1):
        try:
            with np.errstate(all="ignore"):
                program = checked(_program_of(policy, axes))
                _compare(policy, program)
            return Traced(program)
        except Exception as error:  # whatever a stranger's function raises
            why = str(error) if isinstance(error, Untraceable) else f"{type(error).__name__}: {error}"
            reason = reason or why
    return Traced(None, reason)


def _program_of(policy: Policy, axes: int) -> FloatArray:
    for name, value in policy.options().items():
        if not isinstance(value, bool | int | float | str):
            raise Untraceable(f"its option {name} is a {type(value).__name__}, which may change")
    tape, ways = Tape(axes, []), 0

    def way(taken: list[bool]) -> Line:
        """The answer of all ways that begin so."""
        nonlocal ways
        ways += 1
        if ways > _MOST_WAYS:
            raise Untraceable("there are too many ways through its branches")
        tape.ways, tape.branches = list(taken), []
        answer = _alone(partial(_called, policy, tape))
        branches, went = tape.branches, tape.ways
        for i in range(len(branches) - 1, len(taken) - 1, -1):
            answer = tape.line("where", branches[i], answer, way([*went[:i], False]))
        return answer

    return encoded(tape, way([]))


def _called(policy: Policy, tape: Tape) -> Line:
    view = _View(tape)
    if isinstance(policy, CostPolicy) and type(policy).probabilities is CostPolicy.probabilities:
        return _by_cost(policy, tape, view)
    found = policy.probabilities(_RequestStandIn(tape), view)  # type: ignore[arg-type]  # stand-ins
    return line_of(tape, found)


def _alone(call: Callable[[], Line]) -> Line:
    """Call it, and refuse what asks for more than its arguments: a program would always have what it got now."""
    calls: list[str] = []

    def watch(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and str(getattr(function, "__module__", "")).startswith(_OUTSIDE):
            calls.append(f"{function.__module__}.{function.__qualname__}")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # what is collected, and who looks on, may do anything
    sys.setprofile(watch)
    try:
        answer = call()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    if calls:
        raise Untraceable(f"it calls {calls[0]}, so that it depends on more than request and fleet")
    return answer


def _by_cost(policy: CostPolicy, tape: Tape, view: _View) -> Line:
    wiring, kind, request = policy.wiring, type(policy), _RequestStandIn(tape)
    options = wiring.options

    def option(name: str) -> float:
        return float(getattr(policy, name)) if name else 0.0

    def given(name: str) -> Any:
        if name in wiring.columns:
            column = wiring.columns[name]
            return 1.0 if column == ONE else Symbol(tape, tape.line("column", READS.index(column)))
        if name in wiring.facts:
            fact = wiring.facts[name]
            operands = (getattr(view, fact.column).line, view.eligible.line, option(fact.option))
            return Symbol(tape, tape.line(FACTS[fact.of_one], *operands, of_fleet=True))
        return float(options[name]) if name in options else getattr(request, name)

    def called(function: Callable[..., Any]) -> Line:
        return line_of(tape, function(**{name: given(name) for name in parameters(function)}))

    eligible = view.eligible.line
    if kind.candidate is not None:
        eligible = tape.line("logical_and", eligible, called(kind.candidate), is_bool=True)
    if policy.choice.fill not in CHOICES:
        raise Untraceable(f"its choice {policy.choice.fill.__name__} is its own")
    return tape.line(CHOICES[policy.choice.fill], called(kind.cost), eligible, option(policy.choice.option))


class _View:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Symbol:
        tape = self._tape
        if name == "eligible":
            return Symbol(tape, tape.line("eligible", is_bool=True), fixed=True)
        if name not in QUANTITIES:
            raise Untraceable(f"it reads {name}, which no program does")
        return Symbol(tape, tape.line("column", READS.index(name)), fixed=True)


class _RequestStandIn:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Symbol:
        if name not in OF_REQUEST:
            raise Untraceable(f"it reads the request's {name}, which no program does")
        return Symbol(self._tape, self._tape.line("request", OF_REQUEST.index(name), of_fleet=True))


def _compare(policy: Policy, program: FloatArray) -> None:
    """Raise where the program says something else than the function does."""
    for request, fleet in examples():
        workers = fleet.eligible.shape[-1]
        wanted, found = policy.probabilities(request, fleet), answered(program, request, fleet)
        if wanted.shape != fleet.eligible.shape:
            raise Untraceable(f"it answers {wanted.shape} for {fleet.eligible.shape} workers")
        total = wanted.sum()
        if not (wanted >= 0.0).all() or wanted[~fleet.eligible].any() or (total != 0.0 and not abs(total - 1.0) < 1e-6):
            raise Untraceable(f"its answer for {workers} workers is no distribution over the eligible ones")
        if not (abs(found - wanted) <= TOLERANCE).all():
            raise Untraceable(f"its answer for {workers} workers is another one than that of its operations")


def examples() -> Iterator[tuple[Request, Columns]]:
    for number, workers in enumerate(_SIZES * _ROUNDS):
        yield _some(number + 1, workers)


def _some(seed: int, workers: int) -> tuple[Request, Columns]:
    """A request and a fleet, both drawn: with ties, zeros, and what is not known; somebody is eligible."""
    drawn = unit_array(mix_array(np.arange(1, (len(QUANTITIES) + 3) * workers + 6, dtype=np.uint64) * np.uint64(seed)))
    of_request, rest = drawn[:5], drawn[5:].reshape(-1, workers)
    eligible, some = rest[0] < (1.0, 0.7, 0.2)[seed % 3], rest[1] < 0.3
    eligible[int(of_request[0] * workers)] = True
    columns: dict[str, Any] = dict(zip(QUANTITIES, rest[3:], strict=True))
    for name in ("weight", "in_flight", "reported_pending", "pending", "tokens"):
        columns[name] = np.floor(columns[name] * (4.0 if seed % 2 else 40.0)) + (name == "weight")
    columns["tokens"] -= 2.0
    columns["latency_s"] = np.where(some, 0.0, columns["latency_s"])
    columns["error_rate"] = np.where(rest[2] < 0.6, 0.0, columns["error_rate"])
    columns["report_age_s"] = np.where(rest[2] > 0.9, np.inf, columns["report_age_s"])
    names = mix_array(np.arange(workers, dtype=np.uint64) + np.uint64(seed))
    number = int(of_request[1] * 2.0 ** (seed % 50))
    deadline_s = np.inf if seed % 4 == 0 else float(of_request[2])
    key = int(of_request[3] * 2.0**53) if seed % 3 == 0 else None
    rows, priority = float(1 + int(of_request[4] * 32)), seed % 4
    strangers = np.full(workers, -1.0)
    view = Columns(eligible=eligible, name_hash=names, identity=strangers, kind_identity=strangers, **columns)
    for name in ("eligible", *QUANTITIES):
        getattr(view, name).flags.writeable = False
    return Request("m", rows=rows, number=number, key=key, deadline_s=deadline_s, priority=priority), view
