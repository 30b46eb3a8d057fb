"""The learned policy in plain loops over one view, for compiled code; see `network.py` for the formula.

Each eligible worker has a place; a line holds a number of each, so that the loops within are over workers, one number
after the other. Only the lines of eligible workers are computed.
"""

import math

import numpy as np

from policies.base import WORST, BoolArray, FloatArray
from policies.costs import mean as mean_of_eligible
from policies.expected_latency import generated_s
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
from policies.learned.network import Network

READS = (
    *("completion_s", "backlog_s", "pending", "in_flight", "reported_pending"),
    *("service_s", "latency_s", "error_rate", "report_age_s"),
    *("pending_other_models", "cached", "saving_s", "work_behind_s"),
    *("first_token_s", "prompt_s", "slowdown_s", "matched_tokens", "identity", "kind_identity"),
)
"""Columns of the view that the policy reads, in the order in which `fill_learned` takes them."""
_READS, _WORKER, _FLEET, _TERMS = len(READS), len(OF_WORKER), len(OF_FLEET), len(TERMS)
# Lines: first the fields of `FeatureInputs`, which begin as the columns.
_COMPLETION, _MARGINAL, _BACKLOG, _PENDING, _REPORTED_PENDING, _SERVICE, _ERROR_RATE = 0, 0, 1, 2, 4, 5, 7
_OTHER_MODELS, _CACHED, _SAVED, _COST = 9, 10, 11, 12
_WORK_BEHIND, _FIRST_TOKEN, _PROMPT, _SLOWDOWN, _MATCHED, _IDENTITY, _KIND_IDENTITY = range(_COST, _COST + 7)
"""Until the cost and others take their places."""
_BEST, _LEAST_SERVICE, _MEAN_PENDING, _WORKERS, _ROWS, _DEADLINE, _ONE, _ZERO = range(_COST + 1, _COST + 9)
"""The same for all workers: in each place, or, where ratios of the fleet alone have it, in the first."""
_X = _ZERO + 1
_Z = _X + _WORKER
_SECOND = _Z + _TERMS
_SCORE = _SECOND + 1
_H = _SCORE + 1
_INPUTS = OF_WORKER + TERMS + OF_FLEET
_OPERANDS = np.array([[FeatureInputs._fields.index(name) for name in one.ratio] for one in _INPUTS])
_MOST = np.array([one.most for one in _INPUTS])
_TOGETHER = 128
"""Workers whose numbers are in the processor's nearest cache together, for the products."""


Weights = Network
"""As loops take a network: its arrays contiguous, and numbers as arrays of one."""


def weights_of(network: Network) -> Weights:
    return Weights(*(np.array(part, np.float64, order="C", ndmin=1) for part in network))


def scratch_size(n: int, weights: Weights) -> int:
    """How many numbers `fill_learned` writes beside its answer, for `n` workers."""
    hidden = len(weights.b1)
    return (_H + hidden) * n + 2 * hidden + _TERMS + _FLEET


def fill_learned(
    columns: FloatArray,
    eligible: BoolArray,
    of_request: tuple[float, float, float],
    weights: Weights,
    scratch: FloatArray,
    out: FloatArray,
) -> int:
    """`Learned.probabilities` in loops; -1, as nobody has it all for certain.

    Args:
        columns: Those of `READS`, `(c, n)`.
        eligible: `(n,)`.
        of_request: Its rows, deadline in seconds, and tokens of its prompt.
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
    mean_matched = mean_of_eligible(columns[_MATCHED], eligible, 0.0, scratch) if of_request[2] > 0 else 0.0
    best_s = _look(lines, of_request, mean_matched, weights.numbers, weights.tolls)
    score = lines[_SCORE]
    for w in range(m):
        score[w] = -relative_cost(lines[_COST, w], lines[_SAVED, w], best_s)
    if hidden > 0 or not _is_zero(weights.bias):
        _fill_ratios(lines, of_fleet)
        for i in range(_X, _X + _WORKER):
            _take_logarithms(lines[i])
        _take_logarithms(of_fleet)
        _first_layer(lines, of_fleet, weights, mean)
        _look_at_fleet(mean, weights, lead, coefficients)
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


def _toll_of(tolls: FloatArray, identity: float, kind_identity: float) -> float:
    place = _place_of(tolls, identity)
    if tolls[place, 0] != identity:
        place = _place_of(tolls, kind_identity)
        if tolls[place, 0] != kind_identity:
            return 0.0
    return float(tolls[place, 1])


def _place_of(tolls: FloatArray, identity: float) -> int:
    """Index of the first row whose identity is not less; that of the last row is greater than any."""
    low, high = 0, len(tolls) - 1
    while low < high:
        middle = (low + high) // 2
        if tolls[middle, 0] < identity:
            low = middle + 1
        else:
            high = middle
    return low


def _generated(
    lines: FloatArray, w: int, prompt_tokens: float, mean_matched: float, saving_factor: float, numbers: FloatArray
) -> float:
    return float(
        generated_s(
            lines[_COMPLETION, w],
            lines[_FIRST_TOKEN, w],
            lines[_PROMPT, w],
            lines[_SLOWDOWN, w],
            lines[_PENDING, w],
            lines[_REPORTED_PENDING, w],
            lines[_MATCHED, w],
            prompt_tokens,
            mean_matched,
            saving_factor,
            numbers[5],
        )
    )


def _look(
    lines: FloatArray,
    of_request: tuple[float, float, float],
    mean_matched: float,
    numbers: FloatArray,
    tolls: FloatArray,
) -> float:
    """Write the fields of `FeatureInputs` to their lines; returns `best_s`."""
    rows, deadline_s, prompt_tokens = of_request
    for w in range(lines.shape[1]):
        service_s = lines[_SERVICE, w] if lines[_SERVICE, w] < WORST else WORST
        toll_s = _toll_of(tolls, lines[_IDENTITY, w], lines[_KIND_IDENTITY, w]) * service_s
        if prompt_tokens > 0:
            whole_s = _generated(lines, w, prompt_tokens, mean_matched, 0.0, numbers)
            lines[_SAVED, w] = whole_s - _generated(lines, w, prompt_tokens, mean_matched, numbers[4], numbers)
            cost_s = whole_s + numbers[0] * lines[_ERROR_RATE, w] + toll_s
            lines[_COST, w] = cost_s if cost_s < WORST else WORST
        else:
            lines[_COST, w] = cost_of(
                lines[_COMPLETION, w],
                lines[_BACKLOG, w],
                lines[_PENDING, w],
                lines[_OTHER_MODELS, w],
                lines[_WORK_BEHIND, w],
                lines[_ERROR_RATE, w],
                toll_s,
                numbers,
            )
            lines[_SAVED, w] = saving_of(lines[_CACHED, w], lines[_SAVED, w], numbers)
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
    best_s, due_s = float(at_least_tiny(best_s)), float(at_least_tiny(deadline_s))
    for w in range(lines.shape[1]):
        lines[_BEST, w], lines[_LEAST_SERVICE, w], lines[_DEADLINE, w] = best_s, least_service_s, due_s
        lines[_ONE, w], lines[_ZERO, w] = 1.0, 0.0
    lines[_MEAN_PENDING, 0], lines[_WORKERS, 0], lines[_ROWS, 0] = pending / workers, workers, float(rows)
    return best_s


def _cut(ratio: float, most: float) -> float:
    """Within 0 and the most, which stands for what is unknown (NaN), too."""
    return (ratio if ratio > 0.0 else 0.0) if ratio < most else most


def _fill_ratios(lines: FloatArray, of_fleet: FloatArray) -> None:
    """Features and terms from their operands, before logarithms are taken. A loop over workers for each: what stores
    several lines at once does not become vector instructions."""
    for i in range(_WORKER + _TERMS):
        of, times, by = lines[_OPERANDS[i, 0]], lines[_OPERANDS[i, 1]], lines[_OPERANDS[i, 2]]
        less, line, most = lines[_OPERANDS[i, 3]], lines[_X + i], _MOST[i]
        for w in range(len(line)):
            line[w] = _cut(of[w] * times[w] / by[w] - less[w], most)
    for i in range(_FLEET):
        of, times, by, less = _OPERANDS[_WORKER + _TERMS + i]
        ratio = lines[of, 0] * lines[times, 0] / lines[by, 0] - lines[less, 0]
        of_fleet[i] = _cut(ratio, _MOST[_WORKER + _TERMS + i])


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


_LN2_UPPER, _LN2_LOWER = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_R1, _R2, _R3, _R4 = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
)
_R5, _R6, _R7 = 1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01
_UP_TO_8, _UP_TO_4, _UP_TO_2, _UP_TO_1 = 2.0**7.5, 2.0**3.5, 2.0**1.5, 2.0**0.5


def log1p(x: float) -> float:
    """log(1 + x) of 0 to 40,000, within 2 units in the last place, so that a loop over it becomes vector instructions:
    a call of the C library's keeps a loop from that, and is what such a loop would take longest for.

    1 + x is taken as 2^e (1 + f) with 1 + f within a factor of the square root of 2 of 1, and log(1 + f) as a
    polynomial. Source: Sun's fdlibm, `e_log.c` and `s_log1p.c`, whose coefficients these are.
    """
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u  # by rounding
    e = 8.0 if u > _UP_TO_8 else 0.0
    u = u * 2.0**-8 if u > _UP_TO_8 else u
    e = e + 4.0 if u > _UP_TO_4 else e
    u = u * 2.0**-4 if u > _UP_TO_4 else u
    e = e + 2.0 if u > _UP_TO_2 else e
    u = u * 2.0**-2 if u > _UP_TO_2 else u
    e = e + 1.0 if u > _UP_TO_1 else e
    f = (u * 0.5 if u > _UP_TO_1 else u) - 1.0
    s = f / (2.0 + f)
    z, half = s * s, 0.5 * f * f
    r = z * (_R1 + z * (_R2 + z * (_R3 + z * (_R4 + z * (_R5 + z * (_R6 + z * _R7))))))
    return e * _LN2_UPPER - ((half - (s * (half + r) + (e * _LN2_LOWER + lost))) - f)
