"""The learned policy in plain loops over one view, for compiled code; see `network.py` for the formula.

Each eligible worker has a place; a line holds a number of each, so that the loops within are over workers, one number
after the other. Only the lines of eligible workers are computed.
"""

from __future__ import annotations

import math

import numpy as np

from policies.base import WORST, BoolArray, FloatArray
from policies.learned.features import (
    OF_FLEET,
    OF_WORKER,
    TERMS,
    FeatureInputs,
    at_least_tiny,
    cost_of,
    relative_cost,
    saving_of,
)
from policies.learned.logarithm import log1p
from policies.learned.network import Network
from policies.learned.unrolled import in_turn, with_names

READS = (
    *("completion_s", "backlog_s", "pending", "in_flight", "reported_pending"),
    *("service_s", "latency_s", "error_rate", "report_age_s"),
    *("pending_other_models", "cached", "saving_s", "behind_s"),
)
"""Columns of the view that the policy reads, in the order in which `fill_learned` takes them."""
_READS, _WORKER, _FLEET, _TERMS = len(READS), len(OF_WORKER), len(OF_FLEET), len(TERMS)
# Lines: first the fields of `FeatureInputs` that differ between workers, which begin as the columns.
_COMPLETION, _MARGINAL, _BACKLOG, _PENDING, _SERVICE, _ERROR_RATE = 0, 0, 1, 2, 5, 7
_OTHER_MODELS, _CACHED, _SAVED, _COST = 9, 10, 11, 12
_BEHIND = _COST
"""Until the cost takes its place."""
_X = _COST + 1
"""The first line of features."""
_Z = _X + _WORKER
"""The first line of terms."""
_SECOND = _Z + _TERMS
_SCORE = _SECOND + 1
_H = _SCORE + 1
"""The first line of hidden units."""
_TOGETHER = 128
"""Workers whose numbers are in the processor's nearest cache together, for the products."""


Weights = Network
"""As loops take a network: its arrays contiguous, and numbers as arrays of one."""


def weights_of(network: Network) -> Weights:
    """One network's."""
    return Weights(*(np.array(part, np.float64, order="C", ndmin=1) for part in network))


def scratch_size(n: int, weights: Weights) -> int:
    """How many numbers `fill_learned` writes beside its answer, for `n` workers."""
    hidden = len(weights.b1)
    return (_H + hidden) * n + 2 * hidden + _TERMS + _FLEET


def fill_learned(
    columns: FloatArray,
    eligible: BoolArray,
    rows: float,
    deadline_s: float,
    weights: Weights,
    scratch: FloatArray,
    out: FloatArray,
) -> int:
    """`Learned.probabilities` in loops; -1, as nobody has it all for certain.

    Args:
        columns: Those of `READS`, `(c, n)`.
        eligible: `(n,)`.
        rows: Of the request.
        deadline_s: Of the request.
        weights: The network.
        scratch: At least `scratch_size` numbers, of any value.
        out: The probabilities, `(n,)`, are written here.
    """
    m = 0
    for w in range(len(out)):
        m += eligible[w]
    if m == 0:
        for w in range(len(out)):
            out[w] = 0.0
        return -1
    hidden = len(weights.b1)
    lines = scratch[: (_H + hidden) * m].reshape(_H + hidden, m)
    for c in range(_READS):
        _keep_eligible(columns[c], eligible, lines[c])
    rest = scratch[(_H + hidden) * m :]
    mean, lead = rest[:hidden], rest[hidden : 2 * hidden]
    coefficients = rest[2 * hidden : 2 * hidden + _TERMS]
    of_fleet = rest[2 * hidden + _TERMS : 2 * hidden + _TERMS + _FLEET]
    facts = _look(lines, rows, deadline_s)
    _fill_workers(lines, facts, lines, _X)
    _fill_fleet(lines, facts, of_fleet, 0)
    for i in range(_X, _X + _WORKER):
        _take_logarithms(lines[i])
    _take_logarithms(of_fleet)
    _first_layer(lines, of_fleet, weights, mean)
    _look_at_fleet(mean, weights, lead, coefficients)
    score = lines[_SCORE]
    for w in range(m):
        score[w] = -relative_cost(_of_one(lines, facts, w))
    _second_layer(lines, lead, weights, score)
    _add_products(lines, _Z, _TERMS, coefficients, score)
    _softmax(score, weights.beta[0])
    place = 0
    for w in range(len(out)):
        out[w] = 0.0
        if eligible[w]:
            out[w] = score[place]
            place += 1
    return -1


def _keep_eligible(column: FloatArray, eligible: BoolArray, line: FloatArray) -> None:
    if len(line) == len(column):
        for w in range(len(column)):
            line[w] = column[w]
        return
    place = 0
    for w in range(len(column)):
        if eligible[w]:
            line[place] = column[w]
            place += 1


def _look(lines: FloatArray, rows: float, deadline_s: float) -> tuple[float, ...]:
    """The fields of `FeatureInputs` from `best_s` on. What is divided and subtracted of columns is written to lines."""
    for w in range(lines.shape[1]):
        lines[_COST, w] = cost_of(
            lines[_COMPLETION, w],
            lines[_BACKLOG, w],
            lines[_PENDING, w],
            lines[_OTHER_MODELS, w],
            lines[_BEHIND, w],
            lines[_ERROR_RATE, w],
        )
        lines[_SAVED, w] = saving_of(lines[_CACHED, w], lines[_SAVED, w])
        lines[_SERVICE, w] = at_least_tiny(lines[_SERVICE, w])
        lines[_MARGINAL, w] = lines[_COMPLETION, w] - lines[_BACKLOG, w]
    best_s, least_service_s, pending = WORST, WORST, 0.0
    for w in range(lines.shape[1]):
        best_s = min(best_s, lines[_COST, w])
        # One unknown (NaN) makes the least unknown, as it does for NumPy.
        if lines[_SERVICE, w] < least_service_s or lines[_SERVICE, w] != lines[_SERVICE, w]:
            least_service_s = lines[_SERVICE, w]
        pending += lines[_PENDING, w]
    workers = float(lines.shape[1])
    return at_least_tiny(best_s), least_service_s, pending / workers, workers, float(rows), at_least_tiny(deadline_s)


def _of_one(lines: FloatArray, facts: tuple[float, ...], w: int) -> FeatureInputs:
    """What ratios are made of, for the worker at place `w`."""
    return FeatureInputs(
        lines[0, w],
        lines[1, w],
        lines[2, w],
        lines[3, w],
        lines[4, w],
        lines[5, w],
        lines[6, w],
        lines[7, w],
        lines[8, w],
        lines[9, w],
        lines[10, w],
        lines[11, w],
        lines[12, w],
        *facts,
    )


def _cut(ratio: float, most: float) -> float:
    """Within 0 and the most, which stands for what is unknown (NaN), too."""
    return (ratio if ratio > 0.0 else 0.0) if ratio < most else most


# Stand for each ratio in its turn, and where it is cut off: see `with_names`.
_ratio, _most = relative_cost, 0.0


def _fill_ratio(lines: FloatArray, facts: tuple[float, ...], out: FloatArray, i: int) -> None:
    line = out[i]
    for w in range(len(line)):
        line[w] = _cut(_ratio(_of_one(lines, facts, w)), _most)


def _fill_of_fleet(lines: FloatArray, facts: tuple[float, ...], out: FloatArray, i: int) -> None:
    out[i] = _cut(_ratio(_of_one(lines, facts, 0)), _most)


_fill_workers = in_turn([with_names(_fill_ratio, _ratio=one.ratio, _most=one.most) for one in OF_WORKER + TERMS])
_fill_fleet = in_turn([with_names(_fill_of_fleet, _ratio=one.ratio, _most=one.most) for one in OF_FLEET])


def _take_logarithms(line: FloatArray) -> None:
    if _is_zero(line):
        return  # as errors and deadlines often are; so is the logarithm
    for w in range(len(line)):
        line[w] = log1p(line[w])


def _is_zero(line: FloatArray) -> bool:
    w = 0
    while w < len(line) and line[w] == 0.0:
        w += 1
    return w == len(line)


def _add_products(
    lines: FloatArray, first: int, count: int, weights: FloatArray, line: FloatArray, begin: int = 0
) -> None:
    """Add to the line `count` lines, from the first on and the place `begin` on, each times its weight; four at a time,
    which vectorises."""
    i, end = 0, begin + len(line)
    while i + 4 <= count:
        a, b = lines[first + i][begin:end], lines[first + i + 1][begin:end]
        c, d = lines[first + i + 2][begin:end], lines[first + i + 3][begin:end]
        of_a, of_b, of_c, of_d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        for w in range(len(line)):
            line[w] += (a[w] * of_a + b[w] * of_b) + (c[w] * of_c + d[w] * of_d)
        i += 4
    while i < count:
        a, of_a = lines[first + i][begin:end], weights[i]
        for w in range(len(line)):
            line[w] += a[w] * of_a
        i += 1


def _first_layer(lines: FloatArray, of_fleet: FloatArray, weights: Weights, mean: FloatArray) -> None:
    """The hidden units' lines, and their means."""
    same, workers = mean, lines.shape[1]
    for k in range(len(same)):
        same[k] = weights.b1[k]
        for i in range(len(of_fleet)):
            same[k] += of_fleet[i] * weights.w1[_WORKER + i, k]
    for begin in range(0, workers, _TOGETHER):
        for k in range(len(same)):
            line = lines[_H + k][begin : min(begin + _TOGETHER, workers)]
            for w in range(len(line)):
                line[w] = same[k]
            _add_products(lines, _X, _WORKER, weights.w1[:, k], line, begin)
            for w in range(len(line)):
                line[w] = line[w] if line[w] > 0.0 else 0.0
    _take_means(lines, _H, mean)


def _take_means(lines: FloatArray, first: int, mean: FloatArray) -> None:
    """Of lines from the first on, each from left to right; four at a time, as no addition then waits for another's."""
    count, workers = len(mean), lines.shape[1]
    k = 0
    while k + 4 <= count:
        a, b, c, d = lines[first + k], lines[first + k + 1], lines[first + k + 2], lines[first + k + 3]
        of_a, of_b, of_c, of_d = 0.0, 0.0, 0.0, 0.0
        for w in range(workers):
            of_a += a[w]
            of_b += b[w]
            of_c += c[w]
            of_d += d[w]
        mean[k], mean[k + 1], mean[k + 2], mean[k + 3] = of_a, of_b, of_c, of_d
        k += 4
    while k < count:
        mean[k] = 0.0
        for w in range(workers):
            mean[k] += lines[first + k, w]
        k += 1
    for k in range(count):
        mean[k] /= workers


def _look_at_fleet(mean: FloatArray, weights: Weights, lead: FloatArray, coefficients: FloatArray) -> None:
    """What the means add to every worker's second layer, and how each term counts, as what is added to the score."""
    for k in range(len(lead)):
        lead[k] = weights.b2[k]
        for i in range(len(mean)):
            lead[k] += mean[i] * weights.context[i, k]
    for j in range(len(coefficients)):
        coefficients[j] = -weights.bias[j]
        for i in range(len(mean)):
            coefficients[j] -= mean[i] * weights.mix[i, j]


def _second_layer(lines: FloatArray, lead: FloatArray, weights: Weights, score: FloatArray) -> None:
    """Adds to the score what comes out."""
    for begin in range(0, len(score), _TOGETHER):
        some = score[begin : begin + _TOGETHER]
        second = lines[_SECOND][: len(some)]
        for k in range(len(lead)):
            for w in range(len(second)):
                second[w] = lead[k]
            _add_products(lines, _H, len(lead), weights.w2[:, k], second, begin)
            for w in range(len(some)):
                some[w] += (second[w] if second[w] > 0.0 else 0.0) * weights.out[k]


def _softmax(score: FloatArray, beta: float) -> None:
    highest, total = -1e300, 0.0
    for w in range(len(score)):
        highest = max(highest, score[w])
    for w in range(len(score)):
        score[w] = math.exp((score[w] - highest) * beta)
        total += score[w]
    for w in range(len(score)):
        score[w] /= max(total, 1.0)
