"""What policies write in loops for one view, compiled and run over the rows of many."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.policy_answers import is_shipped
from balancer.kernel.state import Options
from policies.base import BoolArray, FleetView, FloatArray, Policy, Request
from policies.choices import SCRATCH
from policies.columns import Rows
from policies.costs import CostPolicy
from policies.learned import Learned
from policies.learned.artifact import Artifact
from policies.learned.loops import READS, fill_learned, scratch_size, weights_of
from policies.traced import traced
from policies.traced.program import answered, fill_rows
from simulator.engine.compiled import from_source, uncached


class _Compiled(Rows):
    def shares(
        self, fill: Callable[..., int], cost: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        masks = _flat(eligible)
        # A copy, which may be written over.
        costs, shares = np.array(_flat(cost), np.float64), np.empty(masks.shape)
        _fill_all(fill)(costs, masks, float(option), np.empty(SCRATCH * masks.shape[1]), shares)
        return shares.reshape(eligible.shape)

    def fact(
        self, of_one: Callable[..., float], column: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        masks, columns = _flat(eligible), _flat(np.broadcast_to(column, eligible.shape))
        found = np.empty(len(masks))
        _find_all(of_one)(columns, masks, float(option), np.empty(masks.shape[1]), found)
        return found.reshape(*eligible.shape[:-1], 1)


COMPILED: Rows = _Compiled()


def answer(policy: Policy, request: Request, view: FleetView) -> FloatArray:
    """The policy's probabilities, `(..., n)`, with the same bits as in the kernel where that has the policy."""
    if not is_shipped(policy):
        program = traced(policy).program
        if program is not None:
            return answered(program, request, view, _fill_programs())
    if isinstance(policy, CostPolicy) and type(policy).probabilities is CostPolicy.probabilities:
        return policy.answer(request, view, COMPILED)
    if type(policy) is Learned:
        return _learned(policy, request, view)
    return policy.probabilities(request, view)


def _learned(policy: Learned, request: Request, view: FleetView) -> FloatArray:
    shape = view.eligible.shape
    masks = _flat(view.eligible)
    columns = [_flat(np.broadcast_to(getattr(view, name), shape)) for name in READS]
    asked = request.rows, request.deadline_s, request.prompt_tokens
    numbers = [np.broadcast_to(number, (*shape[:-1], 1)).reshape(-1) for number in asked]
    options = _options_of_learned(policy.loaded, shape[-1])
    shares = np.empty(masks.shape)
    _fill_all_learned()(np.stack(columns, axis=1), masks, np.array(numbers, np.float64), options, shares)
    return shares.reshape(shape)


def _flat(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(math.prod(array.shape[:-1]), array.shape[-1])


@functools.cache
def _fill_all(fill: Callable[..., int]) -> Any:
    one = from_source(fill)

    def fill_all(cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, shares: FloatArray) -> None:
        for row in range(len(cost)):
            one(cost[row], eligible[row], option, scratch, shares[row])

    return uncached(fill_all)


@functools.cache
def _find_all(of_one: Callable[..., float]) -> Any:
    one = from_source(of_one)

    def find_all(
        column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, found: FloatArray
    ) -> None:
        for row in range(len(column)):
            found[row] = one(column[row], eligible[row], option, scratch)

    return uncached(find_all)


@functools.cache
def _fill_programs() -> Any:
    return uncached(from_source(fill_rows).py_func)


@functools.lru_cache(maxsize=16)
def _options_of_learned(artifact: Artifact, workers: int) -> Native:
    weights = weights_of(artifact.network)
    return Native(Options(np.zeros(1), weights, np.zeros(scratch_size(workers, weights))))


@functools.cache
def _fill_all_learned() -> Any:
    one = from_source(fill_learned)

    def fill_all(columns: Any, eligible: Any, asked: Any, options: Options, shares: Any) -> None:
        for row in range(len(eligible)):
            of_request = asked[0, row], asked[1, row], asked[2, row]
            one(columns[row], eligible[row], of_request, options.weights, options.scratch, shares[row])

    return uncached(fill_all)
