"""Policies that decide inside the engine: their own costs and choices, compiled, over the columns that they name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from policies import BUILTIN, Policy
from policies.choices import Choice
from policies.costs import CostPolicy, parameters
from policies.facts import Fact
from policies.learned import Learned
from policies.learned.loops import READS, Weights, fill_learned, scratch_size, weights_of
from policies.round_robin import RoundRobin, fill_turn
from simulator.engine.calls import called_by_address
from simulator.engine.columns import OF_REQUEST, OF_WORKER
from simulator.engine.compiled import from_source, inlined
from simulator.engine.knowledge import row
from simulator.engine.layout import Sim
from simulator.engine.loop import NO_WEIGHTS, Options
from simulator.engine.native import Native
from simulator.engine.picks import draw, take


class Decider(NamedTuple):
    """A policy for the engine."""

    address: int
    """Of the compiled function: (sim, options, environment, request, time) to the worker, or -1 to shed."""
    options: Native


class _Parts(NamedTuple):
    name: str
    """Tells apart what is compiled."""
    columns: tuple[str, ...]
    """In the order of their lines in `State.columns`."""
    fill: Any
    """(sim, options, environment, request, first row, time), compiled: fills `State.shares`; returns who has it all, or
    -1."""
    options: tuple[float, ...]
    weights: Weights = NO_WEIGHTS


_functions: dict[tuple[str, Any], Any] = {}
"""Kept, as code that is called by its address must be."""


def decider(policy: Policy, sim: Native, workers: int) -> Decider | None:
    """The policy, compiled at its first use; None where it goes on in NumPy.

    Args:
        policy: Which.
        sim: The arrays it reads.
        workers: Of the largest fleet in there.
    """
    parts = _parts(policy)
    if parts is None:
        return None
    scratch = np.zeros(scratch_size(workers, parts.weights))
    options = Native(Options(np.array((*parts.options, 0.0)), parts.weights, scratch))
    key = (parts.name, sim.numba_type)
    if key not in _functions:
        _functions[key] = called_by_address(_decide(parts), parts.name, sim, options)
    return Decider(_functions[key].address, options)


def _parts(policy: Policy) -> _Parts | None:
    if type(policy) not in BUILTIN.values():
        return None
    if isinstance(policy, CostPolicy):
        return _of_costs(policy)
    if isinstance(policy, RoundRobin):
        return _Parts(policy.name, (), _by_turn, ())
    if isinstance(policy, Learned):
        return _Parts(policy.name, READS, _by_network, (), weights_of(policy.loaded.network))
    return None


def _decide(parts: _Parts) -> Any:
    fill_columns = _one_after_the_other([_fill_column(i, OF_WORKER[name]) for i, name in enumerate(parts.columns)])
    fill = parts.fill

    def decide(sim: Sim, options: Options, e: int, k: int, now_s: float) -> int:
        b = sim.demand.balancer[e, k]
        first = row(sim, e, b, 0)
        fill_columns(sim, options, e, k, first, now_s)
        w = fill(sim, options, e, k, first, now_s)
        return w if w >= 0 else take(sim.state.shares[e], draw(sim, e, b))

    return decide


def _fill_column(i: int, of_worker: Any) -> Any:
    @inlined
    def fill(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> None:
        line = sim.state.columns[e, i]
        for w in range(line.size):
            line[w] = of_worker(sim, e, w, first + w, k, now_s)

    return fill


_fill_turn = from_source(fill_turn)


@inlined
def _by_turn(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> int:
    number = sim.known.number[e, sim.demand.balancer[e, k]]
    return _fill_turn(number, sim.state.mask[e], sim.state.shares[e])


_fill_learned = from_source(fill_learned)


@inlined
def _by_network(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> int:
    x, asked = sim.state, sim.demand
    rows, deadline_s = asked.rows[e, k], asked.deadline_s[e, k]
    return _fill_learned(x.columns[e], x.mask[e], rows, deadline_s, options.weights, options.scratch, x.shares[e])


def _of_costs(policy: CostPolicy) -> _Parts:
    """The policy's functions put together: facts, then costs and candidates worker by worker, then the choice."""
    kind, wiring = type(policy), policy.wiring
    # Columns of facts, and those read twice, are computed beforehand; the others where the cost needs them.
    used = Counter(
        wiring.columns[name] for f in (kind.cost, kind.candidate) for name in parameters(f) if name in wiring.columns
    )
    used.update(2 * [fact.column for fact in wiring.facts.values()])
    columns = tuple(name for name, times in used.items() if times > 1)
    options = [float(value) for value in wiring.options.values()]

    def option_of(chosen: Choice | Fact) -> int:
        options.append(float(getattr(policy, chosen.option)) if chosen.option else 0.0)
        return len(options) - 1

    def parameter(name: str) -> Any:
        if name in wiring.columns:
            column = wiring.columns[name]
            return _column(columns.index(column)) if column in columns else _computed(OF_WORKER[column])
        if name in wiring.facts:
            return _fact(list(wiring.facts).index(name))
        return _option(list(wiring.options).index(name)) if name in wiring.options else _of_request(OF_REQUEST[name])

    facts = [
        _find_fact(i, from_source(fact.of_one), columns.index(fact.column), option_of(fact))
        for i, fact in enumerate(wiring.facts.values())
    ]
    cost = from_source(kind.cost)
    of_cost = _together([parameter(name) for name in parameters(kind.cost)])
    fill, option = from_source(policy.choice.fill), option_of(policy.choice)
    find_facts, choose = _one_after_the_other(facts), _among_all(fill, option)
    if kind.candidate is not None:
        of_candidate = _together([parameter(name) for name in parameters(kind.candidate)])
        choose = _among_candidates(fill, option, from_source(kind.candidate), of_candidate)

    @inlined
    def fill_shares(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> int:
        find_facts(sim, options, e, k, first, now_s)
        costs = sim.state.cost[e]
        for w in range(costs.size):
            costs[w] = cost(*of_cost(sim, options, e, k, w, first + w, now_s))
        return choose(sim, options, e, k, first, now_s)

    return _Parts("-".join((policy.name, *used)), columns, fill_shares, tuple(options))


def _find_fact(i: int, of_one: Any, line: int, option: int) -> Any:
    @inlined
    def find(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> None:
        x = sim.state
        x.facts[e, i] = of_one(x.columns[e, line], x.mask[e], options.values[option], x.scratch[e])

    return find


def _among_all(fill: Any, option: int) -> Any:
    @inlined
    def choose(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> int:
        x = sim.state
        return fill(x.cost[e], x.mask[e], options.values[option], x.scratch[e], x.shares[e])

    return choose


def _among_candidates(fill: Any, option: int, candidate: Any, of_candidate: Any) -> Any:
    @inlined
    def choose(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> int:
        x = sim.state
        for w in range(sim.sizes.workers):
            x.candidate[e, w] = x.mask[e, w] and candidate(*of_candidate(sim, options, e, k, w, first + w, now_s))
        return fill(x.cost[e], x.candidate[e], options.values[option], x.scratch[e], x.shares[e])

    return choose


# What a parameter is given for one worker.
def _column(i: int) -> Any:
    return inlined(lambda sim, options, e, k, w, r, now_s: sim.state.columns[e, i, w])


def _computed(of_worker: Any) -> Any:
    return inlined(lambda sim, options, e, k, w, r, now_s: of_worker(sim, e, w, r, k, now_s))


def _fact(i: int) -> Any:
    return inlined(lambda sim, options, e, k, w, r, now_s: sim.state.facts[e, i])


def _option(i: int) -> Any:
    return inlined(lambda sim, options, e, k, w, r, now_s: options.values[i])


def _of_request(get: Any) -> Any:
    return inlined(lambda sim, options, e, k, w, r, now_s: get(sim, e, k))


def _together(getters: Sequence[Any]) -> Any:
    """All of them as one tuple."""
    if not getters:
        return inlined(lambda sim, options, e, k, w, r, now_s: ())
    one, rest = getters[0], _together(getters[1:])
    return inlined(
        lambda sim, options, e, k, w, r, now_s: (
            one(sim, options, e, k, w, r, now_s),
            *rest(sim, options, e, k, w, r, now_s),
        )
    )


def _one_after_the_other(steps: Sequence[Any]) -> Any:
    """All of them as one step."""
    if not steps:
        return inlined(lambda sim, options, e, k, first, now_s: None)
    one, rest = steps[0], _one_after_the_other(steps[1:])

    @inlined
    def both(sim: Sim, options: Options, e: int, k: int, first: int, now_s: float) -> None:
        one(sim, options, e, k, first, now_s)
        rest(sim, options, e, k, first, now_s)

    return both
