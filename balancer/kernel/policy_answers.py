"""Policies' answers: their own costs, facts and choices put together to one function over the fleet's state.

What is put together is plain Python. With a `Compiler`, every step is compiled from its own source.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from balancer.kernel.state import MOST_COLUMNS, MOST_FACTS, NO_WEIGHTS, FleetState, Options, RequestFeatures
from balancer.kernel.worker_columns import OF_REQUEST, OF_WORKER
from policies import BUILTIN
from policies.base import Policy
from policies.choices import Choice
from policies.costs import CostPolicy, Fact, parameters
from policies.learned import Learned
from policies.learned.loops import READS, Weights, fill_learned, scratch_size, weights_of
from policies.round_robin import RoundRobin, fill_turn
from policies.traced import traced
from policies.traced.program import COLUMNS, fill_program, scratch_lines
from policies.traced.program import READS as OF_PROGRAMS

Answer = Callable[[FleetState, Options, int, int, RequestFeatures, float], int]
"""(state, options, fleet, row of its first worker, request, time): fills `decision.shares` of those in `decision.mask`;
returns who has it all, or -1; of a program also `INVALID`, where they are no distribution."""
PROGRAM = "program"
"""Name of the answer of all policies that are carried as programs."""


class Compiler(NamedTuple):
    """Turns functions into compiled ones; by default, into themselves."""

    source: Callable[[Any], Any] = lambda function: function
    step: Callable[[Any], Any] = lambda function: function


class Answering(NamedTuple):
    name: str
    """Tells apart what differs in code; options differ in numbers alone."""
    answer: Answer
    options: tuple[float, ...]
    weights: Weights = NO_WEIGHTS
    scratch_lines: int = 0
    """Numbers of scratch for each worker, beside what the weights take."""


def answering(policy: Policy, compiler: Compiler) -> Answering | None:
    """How a policy answers that is shipped, or fits a program; None where only its `probabilities` can tell."""
    if not is_shipped(policy):
        program = traced(policy).program
        if program is None:
            return None
        return Answering(PROGRAM, by_program(compiler), tuple(program.tolist()), scratch_lines=scratch_lines(program))
    if isinstance(policy, CostPolicy):
        return _by_cost(policy, compiler)
    if isinstance(policy, RoundRobin):
        return Answering(policy.name, _by_turn(compiler), ())
    if isinstance(policy, Learned):
        return Answering(policy.name, _by_network(compiler), (), weights_of(policy.loaded.network))
    return None


def is_shipped(policy: Policy) -> bool:
    return BUILTIN.get(policy.name) is type(policy)


def options_of(found: Answering, workers: int) -> Options:
    scratch = max(scratch_size(workers, found.weights), found.scratch_lines * workers)
    return Options(np.array((*found.options, 0.0)), found.weights, np.zeros(scratch))


def _by_turn(compiler: Compiler) -> Answer:
    fill = compiler.source(fill_turn)

    def answer(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
        return int(fill(request.number, x.decision.mask[e], x.decision.shares[e]))

    return _step(compiler, answer)


@functools.lru_cache(maxsize=4)  # training makes a policy for each candidate: their weights differ, this does not
def _by_network(compiler: Compiler) -> Answer:
    fill, fill_columns = compiler.source(fill_learned), _filling(compiler, READS)

    def answer(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
        fill_columns(x, options, e, first, request, now_s)
        d, of_request = x.decision, (float(request.rows), float(request.deadline_s), float(request.prompt_tokens))
        return int(fill(d.columns[e], d.mask[e], of_request, options.weights, options.scratch, d.shares[e]))

    return _step(compiler, answer)


def by_program(compiler: Compiler) -> Answer:
    assert len(OF_PROGRAMS) <= MOST_COLUMNS
    fill = compiler.source(fill_program)
    fill_columns = _one_after_the_other(
        compiler, [_fill_read(compiler, i, compiler.source(OF_WORKER[name])) for i, name in enumerate(OF_PROGRAMS)]
    )  # of all workers: programs may look at those who may not be picked

    def answer(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
        fill_columns(x, options, e, first, request, now_s)
        d = x.decision
        # Of one type each: the simulator keeps them as small numbers.
        of_request = (
            float(request.rows),
            float(request.deadline_s),
            float(request.priority),
            float(request.keyed),
            float(request.number),
        )
        return int(fill(options.values, d.columns[e], d.mask[e], of_request, options.scratch, d.shares[e]))

    return _step(compiler, answer)


def _fill_read(compiler: Compiler, i: int, of_worker: Any) -> Any:
    def fill(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> None:
        if int(options.values[COLUMNS]) >> i & 1:
            line = x.decision.columns[e, i]
            for w in range(len(line)):
                line[w] = of_worker(x, e, w, first + w, request, now_s)

    return compiler.step(fill)


def _filling(compiler: Compiler, columns: Sequence[str]) -> Any:
    return _one_after_the_other(
        compiler, [_fill_column(compiler, i, compiler.source(OF_WORKER[name])) for i, name in enumerate(columns)]
    )


def _fill_column(compiler: Compiler, i: int, of_worker: Any) -> Any:
    def fill(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> None:
        line, mask = x.decision.columns[e, i], x.decision.mask[e]
        for w in range(len(line)):
            if mask[w]:
                line[w] = of_worker(x, e, w, first + w, request, now_s)

    return compiler.step(fill)


def _one_after_the_other(compiler: Compiler, steps: Sequence[Any]) -> Any:
    if not steps:
        return compiler.step(lambda x, options, e, first, request, now_s: None)
    one, rest = steps[0], _one_after_the_other(compiler, steps[1:])

    def both(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> None:
        one(x, options, e, first, request, now_s)
        rest(x, options, e, first, request, now_s)

    return compiler.step(both)


def _step(compiler: Compiler, function: Answer) -> Answer:
    made: Answer = compiler.step(function)
    return made


def _by_cost(policy: CostPolicy, compiler: Compiler) -> Answering:
    """Facts, then costs and candidates worker by worker, then the choice."""
    parts = _Parts(policy, compiler)
    kind, decision_facts = type(policy), parts.facts()
    cost, of_cost = compiler.source(kind.cost), parts.together(parameters(kind.cost))
    choose = parts.choose()
    fill_columns = parts.columns_filled()

    def answer(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
        fill_columns(x, options, e, first, request, now_s)
        decision_facts(x, options, e, first, request, now_s)
        costs, mask = x.decision.cost[e], x.decision.mask[e]
        for w in range(len(costs)):
            if mask[w]:
                costs[w] = cost(*of_cost(x, options, e, w, first + w, request, now_s))
        return int(choose(x, options, e, first, request, now_s))

    name = "-".join((policy.name, *policy.columns().values()))
    return Answering(name, _step(compiler, answer), tuple(parts.options))


class _Parts:
    def __init__(self, policy: CostPolicy, compiler: Compiler) -> None:
        self._policy, self._compiler = policy, compiler
        kind, wiring = type(policy), policy.wiring
        self._wiring = wiring
        # Columns of facts, and those read twice, are computed beforehand; the others where the cost needs them.
        names = [*parameters(kind.cost), *parameters(kind.candidate)]
        self.used = Counter(wiring.columns[name] for name in names if name in wiring.columns)
        self.used.update(2 * [fact.column for fact in wiring.facts.values()])
        self._columns = [name for name, times in self.used.items() if times > 1]
        assert len(self._columns) <= MOST_COLUMNS
        assert len(wiring.facts) <= MOST_FACTS
        self.options = [float(value) for value in wiring.options.values()]

    def _option_of(self, chosen: Choice | Fact) -> int:
        self.options.append(float(getattr(self._policy, chosen.option)) if chosen.option else 0.0)
        return len(self.options) - 1

    def columns_filled(self) -> Any:
        return _filling(self._compiler, self._columns)

    def facts(self) -> Any:
        return _one_after_the_other(
            self._compiler, [self._find(i, fact) for i, fact in enumerate(self._wiring.facts.values())]
        )

    def _find(self, i: int, fact: Fact) -> Any:
        of_one, option = self._compiler.source(fact.of_one), self._option_of(fact)
        line = self._columns.index(fact.column)

        def find(x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> None:
            d = x.decision
            d.facts[e, i] = of_one(d.columns[e, line], d.mask[e], options.values[option], d.scratch[e])

        return self._compiler.step(find)

    def choose(self) -> Any:
        fill, option = self._compiler.source(self._policy.choice.fill), self._option_of(self._policy.choice)

        def among_all(
            x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float
        ) -> int:
            d = x.decision
            return int(fill(d.cost[e], d.mask[e], options.values[option], d.scratch[e], d.shares[e]))

        found = type(self._policy).candidate
        if found is None:
            return self._compiler.step(among_all)
        candidate, of_candidate = self._compiler.source(found), self.together(parameters(found))

        def among_candidates(
            x: FleetState, options: Options, e: int, first: int, request: RequestFeatures, now_s: float
        ) -> int:
            d = x.decision
            for w in range(d.mask.shape[1]):
                d.candidate[e, w] = d.mask[e, w] and candidate(
                    *of_candidate(x, options, e, w, first + w, request, now_s)
                )
            return int(fill(d.cost[e], d.candidate[e], options.values[option], d.scratch[e], d.shares[e]))

        return self._compiler.step(among_candidates)

    def together(self, names: Sequence[str]) -> Any:
        step = self._compiler.step
        if not names:
            return step(lambda x, options, e, w, r, request, now_s: ())
        one, rest = self._parameter(names[0]), self.together(names[1:])
        return step(
            lambda x, options, e, w, r, request, now_s: (
                one(x, options, e, w, r, request, now_s),
                *rest(x, options, e, w, r, request, now_s),
            )
        )

    def _parameter(self, name: str) -> Any:
        wiring, step, source = self._wiring, self._compiler.step, self._compiler.source
        if name in wiring.columns:
            column = wiring.columns[name]
            if column in self._columns:
                i = self._columns.index(column)
                return step(lambda x, options, e, w, r, request, now_s: x.decision.columns[e, i, w])
            of_worker = source(OF_WORKER[column])
            return step(lambda x, options, e, w, r, request, now_s: of_worker(x, e, w, r, request, now_s))
        if name in wiring.facts:
            i = list(wiring.facts).index(name)
            return step(lambda x, options, e, w, r, request, now_s: x.decision.facts[e, i])
        if name in wiring.options:
            i = list(wiring.options).index(name)
            return step(lambda x, options, e, w, r, request, now_s: options.values[i])
        of_request = source(OF_REQUEST[name])
        return step(lambda x, options, e, w, r, request, now_s: of_request(request))
