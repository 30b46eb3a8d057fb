"""Policies that are a cost for each worker and a choice among costs, written once for one worker or many."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np

from policies.base import WORST, BoolArray, FleetView, FloatArray, Policy, Request
from policies.choices import Choice
from policies.columns import COLUMNS, IN_PYTHON, Rows
from policies.hashing import draws

Elements: TypeAlias = Any
"""A `FloatArray`, or a number: mypy has no type for a function of either."""


class Fact(NamedTuple):
    """How it is found, of which column, and the name of the policy's option that it takes; empty: none."""

    of_one: Callable[..., float]
    column: str
    option: str = ""


def total_of(column: str) -> Fact:
    """The sum over the eligible workers, of values up to `WORST`."""
    return Fact(total, column)


def most_of(column: str) -> Fact:
    """The greatest of the eligible workers' values, at least 0; unknown (NaN) ones do not count."""
    return Fact(most, column)


def lowest_of(column: str) -> Fact:
    """The least of the eligible workers' values; unknown (NaN) ones do not count; infinite where there is none."""
    return Fact(lowest, column)


def mean_of(column: str) -> Fact:
    """The mean over the eligible workers, of values between 0 and what counts as infinite; 0 where there is none."""
    return Fact(mean, column)


def quantile_of(column: str, option: str) -> Fact:
    """The lower quantile (an order statistic) over the eligible workers, by the share that the option says."""
    return Fact(lower_quantile, column, option)


def total(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    found = 0.0
    for w in range(len(column)):
        if eligible[w]:
            found += column[w] if column[w] < WORST else WORST
    return found


def mean(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    found, count = 0.0, 0
    for w in range(len(column)):
        if eligible[w]:
            count += 1
            if column[w] > 0:
                found += column[w] if column[w] < WORST else WORST
    return found / count if count > 0 else 0.0


def most(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    found = 0.0
    for w in range(len(column)):
        if eligible[w] and column[w] > found:
            found = column[w]
    return found


def lowest(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    found = np.inf
    for w in range(len(column)):
        if eligible[w] and column[w] < found:
            found = column[w]
    return float(found)


def lower_quantile(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    """See `quantile_of`; by selection, whose loops have no branches: which way one would go, no processor can guess."""
    count = 0
    for w in range(len(column)):
        if eligible[w]:
            # What is not a number sorts last.
            scratch[count] = column[w] if column[w] == column[w] else np.inf
            count += 1
    if count == 0:
        return np.inf
    place, left = int(option * (count - 1)), scratch[:count]
    while True:
        pivot, less, upto, kept = left[place], 0, 0, 0
        for i in range(len(left)):
            less += left[i] < pivot
            upto += left[i] <= pivot
        if less <= place < upto:
            return float(pivot)
        if place < less:
            for i in range(len(left)):
                value = left[i]
                left[kept] = value
                kept += value < pivot
        else:
            place -= upto
            for i in range(len(left)):
                value = left[i]
                left[kept] = value
                kept += value > pivot
        left = left[:kept]


DRAW = "draw"
"""A column beside those of the view: the worker's draw for the request's key, uniform in [0, 1)."""
ONE = "one"
"""A column of ones, for an option that leaves another column out."""
OF_REQUEST = ("rows", "deadline_s", "priority", "keyed", "prompt_tokens")
"""What a cost may ask of the request; keyed: 1 where it has a key."""


_ONE = np.array(1.0)


class Wiring(NamedTuple):
    """Where the parameters of a policy's functions come from; parameters by name."""

    columns: dict[str, str]
    """The column that a parameter is; `DRAW` and `ONE` are some."""
    options: dict[str, FloatArray]
    """Numbers: bools as 0 and 1, one of several texts as its place among them."""
    facts: dict[str, Fact]


class _Call(NamedTuple):
    """A function of a policy, and what NumPy's form of it is called with; parameters by name."""

    function: Callable[..., Any]
    columns: tuple[tuple[str, str], ...]
    options: dict[str, FloatArray]
    rest: tuple[str, ...]


class CostPolicy(Policy):
    """A policy that picks by costs.

    `cost` and `candidate` hold for one worker as for arrays of them: NumPy's functions of elements and operators, no
    branches. The names of their parameters say what they are given: columns of the view, what a request has
    (`OF_REQUEST`), options of the policy, its `facts`, and `draw`. So they run over arrays in NumPy, and compiled,
    worker by worker, in the simulator.
    """

    choice: ClassVar[Choice]
    cost: ClassVar[Callable[..., Any]]
    """What each worker costs; infinite and unknown (NaN) ones come last."""
    candidate: ClassVar[Callable[..., Any] | None] = None
    """Whether an eligible worker may be chosen; None: each may."""
    facts: ClassVar[Mapping[str, Fact]] = {}
    """Facts of the whole fleet that are given as parameters of these names."""

    def columns(self) -> Mapping[str, str]:
        """Parameters that stand for one column or another, as an option says."""
        return {}

    @functools.cached_property
    def wiring(self) -> Wiring:
        """Where the parameters come from; a TypeError names one that is nowhere."""
        columns: dict[str, str] = {}
        numbers: dict[str, FloatArray] = {}
        options, hints = self.options(), get_type_hints(type(self))
        for name in dict.fromkeys((*parameters(type(self).cost), *parameters(type(self).candidate))):
            column = self._column(name)
            if column in (*COLUMNS, DRAW, ONE):
                columns[name] = column
            elif name in options:
                numbers[name] = np.asarray(_number(options[name], hints[name]))
            elif name not in self.facts and name not in OF_REQUEST:
                raise TypeError(f"policy {self.name}: {name!r} is no column, option, fact or request's; see CostPolicy")
        facts = {name: fact._replace(column=self._column(fact.column)) for name, fact in self.facts.items()}
        return Wiring(columns, numbers, facts)

    def _column(self, name: str) -> str:
        return self.columns().get(name, name)

    @functools.cached_property
    def _calls(self) -> tuple[_Call, _Call | None]:
        """Of the cost and of the candidate."""
        kind = type(self)
        return self._call(kind.cost), None if kind.candidate is None else self._call(kind.candidate)

    def _call(self, function: Callable[..., Any]) -> _Call:
        wiring, names = self.wiring, parameters(function)
        columns = [name for name in names if wiring.columns.get(name, DRAW) in COLUMNS]
        options = {name: wiring.options[name] for name in names if name in wiring.options}
        options.update({name: _ONE for name in names if wiring.columns.get(name) == ONE})
        rest = tuple(name for name in names if name not in columns and name not in options)
        return _Call(function, tuple((name, wiring.columns[name]) for name in columns), options, rest)

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """The shares of the choice, `(..., n)`."""
        return self.answer(request, fleet, IN_PYTHON)

    def answer(self, request: Request, fleet: FleetView, rows: Rows) -> FloatArray:
        """`probabilities`, where `rows` runs what is written in loops."""
        of_cost, of_candidate = self._calls
        eligible, choice = fleet.eligible, self.choice
        facts = {
            name: rows.fact(fact.of_one, getattr(fleet, fact.column), eligible, self._number_of(fact.option))
            for name, fact in self.wiring.facts.items()
        }
        cost = self._called(of_cost, request, fleet, facts)
        if of_candidate is not None:
            eligible = eligible & self._called(of_candidate, request, fleet, facts)
        cost, eligible = np.broadcast_arrays(cost, eligible)
        return rows.shares(choice.fill, cost, eligible, self._number_of(choice.option))

    def _number_of(self, option: str) -> float:
        return float(getattr(self, option)) if option else 0.0

    def _called(self, call: _Call, request: Request, fleet: FleetView, facts: Mapping[str, FloatArray]) -> Any:
        given = {name: getattr(fleet, column) for name, column in call.columns}
        for name in call.rest:
            if name == DRAW:
                given[name] = draws(request, fleet)
            elif name == "keyed":
                given[name] = float(request.key is not None)
            else:
                given[name] = facts[name] if name in facts else getattr(request, name)
        return call.function(**given, **call.options)


@functools.cache
def parameters(function: Callable[..., Any] | None) -> tuple[str, ...]:
    return () if function is None else tuple(inspect.signature(function).parameters)


def _number(value: Any, hint: Any) -> float:
    return float(get_args(hint).index(value) if get_origin(hint) is Literal else value)
