"""Programs of operations on lines of workers, as numbers: what a policy is traced to, and what runs them.

A program is data, so that compiled code of a kernel that was built before can decide by it. A line is one number for
each worker. An operation writes one line and reads others; a number of the whole fleet stands in each place of its own.
The interpreter is plain Python, which numba compiles as it compiles the shipped policies, so that its answers have the
same bits in production, in Envoy and in the simulator. It follows what a program says without a look: `checked` looks.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from policies.base import BoolArray, FleetView, FloatArray, Request
from policies.choices import SCRATCH, fill_in_proportion, fill_least, fill_sampled_least, fill_softmin, sort_by
from policies.columns import QUANTITIES
from policies.costs import DRAW, lower_quantile, most, total
from policies.hashing import draws

READS = (*QUANTITIES, DRAW)
"""Columns that programs may read, in the order in which the interpreter takes them."""
OF_REQUEST = ("rows", "deadline_s", "priority", "keyed", "number")
"""What programs may read of the request, in that order."""
MOST_OPERATIONS, MOST_LINES = 96, 32
INVALID = -2
"""In place of a worker: the answer is no distribution over the eligible workers."""

COUNT, LINES, COLUMNS, RESULT, HEAD = range(5)
"""A program's numbers: operations, lines, bits of the columns read, the line that is the answer; then operations."""
WORDS = 5
"""Of an operation: its code, the line written, three operands, each a line or a number."""
_SPARE = SCRATCH + 1
"""Lines beside the program's own: scratch, and costs that are written over."""

GIVEN = ("constant", "column", "request", "eligible", "workers", "index")
"""Operations of no line: a number; a column, or a number of the request, by its place; the rest is plain."""
UNARY = (
    *("negative", "absolute", "floor", "ceil", "sqrt", "exp", "log", "log1p", "tanh"),
    *("isnan", "isfinite", "logical_not"),
)
"""Of one line, element by element; by the names of NumPy's functions, here as below."""
BINARY = (
    *("add", "subtract", "multiply", "divide", "remainder", "floor_divide", "maximum", "minimum", "fmax", "fmin"),
    *("less", "less_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"),
)
TERNARY = ("where",)
FOLDS = ("sum", "max", "min")
"""Of one line to one number, from left to right."""
LINEWISE = ("argmin", "cumsum", "argsort", "take")
"""Of one line, the last one of two; equal numbers are sorted as they were."""
FACTS = {total: "total", most: "most", lower_quantile: "lower_quantile"}
CHOICES = {
    **{fill_least: "least", fill_sampled_least: "sampled_least"},
    **{fill_softmin: "softmin", fill_in_proportion: "in_proportion"},
}
NAMES = (*GIVEN, *UNARY, *BINARY, *TERNARY, *FOLDS, *LINEWISE, *FACTS.values(), *CHOICES.values())
"""Of all operations; a code is the place in here."""
(
    _CONSTANT, _COLUMN, _OF_REQUEST, _ELIGIBLE, _WORKERS, _INDEX,
    _NEGATIVE, _ABSOLUTE, _FLOOR, _CEIL, _SQRT, _EXP, _LOG, _LOG1P, _TANH, _ISNAN, _ISFINITE, _NOT,
    _ADD, _SUBTRACT, _MULTIPLY, _DIVIDE, _REMAINDER, _FLOOR_DIVIDE, _MAXIMUM, _MINIMUM, _FMAX, _FMIN,
    _LESS, _LESS_EQUAL, _EQUAL, _NOT_EQUAL, _AND, _OR, _XOR,
    _WHERE, _SUM, _MAX, _MIN, _ARGMIN, _CUMSUM, _ARGSORT, _TAKE,
    _TOTAL, _MOST, _QUANTILE, _LEAST, _SAMPLED_LEAST, _SOFTMIN, _IN_PROPORTION,
) = range(len(NAMES))  # fmt: skip


def _given(code: int, operand: float, place: int, x: Any) -> float:
    columns, eligible, of_request = x
    if code == _CONSTANT:
        return operand
    if code == _COLUMN:
        return float(columns[int(operand), place])
    if code == _OF_REQUEST:
        return float(of_request[int(operand)])
    if code == _ELIGIBLE:
        return 1.0 if eligible[place] else 0.0
    return float(len(eligible) if code == _WORKERS else place)


def _unary(code: int, a: float) -> float:  # noqa: PLR0911  # a table
    # What Python raises for is what compiled code has.
    if code == _NEGATIVE:
        return -a
    if code == _ABSOLUTE:
        return abs(a)
    if code == _FLOOR:
        return float(np.floor(a))
    if code == _CEIL:
        return float(np.ceil(a))
    if code == _SQRT:
        return math.sqrt(a) if a >= 0.0 else math.nan
    if code == _EXP:
        return math.exp(a) if not a > 709.782712893384 else math.inf
    if code == _LOG:
        return math.log(a) if a > 0.0 else (-math.inf if a == 0.0 else math.nan)
    if code == _LOG1P:
        return math.log1p(a) if a > -1.0 else (-math.inf if a == -1.0 else math.nan)
    if code == _TANH:
        return math.tanh(a)
    if code == _ISNAN:
        return 1.0 if math.isnan(a) else 0.0
    if code == _ISFINITE:
        return 1.0 if abs(a) < math.inf else 0.0
    return 0.0 if a != 0.0 else 1.0


def _binary(code: int, a: float, b: float) -> float:  # noqa: PLR0911  # a table
    if code == _ADD:
        return a + b
    if code == _SUBTRACT:
        return a - b
    if code == _MULTIPLY:
        return a * b
    if code == _DIVIDE:
        return a / b
    if code == _REMAINDER:
        return a % b if b != 0.0 else math.nan
    if code == _FLOOR_DIVIDE and abs(b) == math.inf and abs(a) < math.inf:
        return -1.0 if a != 0.0 and (a < 0.0) != (b < 0.0) else a / b
    if code == _FLOOR_DIVIDE:
        return float(np.floor((a - a % b) / b + 0.5)) if b != 0.0 else a / b
    if code == _MAXIMUM:
        return a if a > b or math.isnan(a) else b
    if code == _MINIMUM:
        return a if a < b or math.isnan(a) else b
    if code == _FMAX:
        return a if a > b or math.isnan(b) else b
    if code == _FMIN:
        return a if a < b or math.isnan(b) else b
    return 1.0 if _holds(code, a, b) else 0.0


def _holds(code: int, a: float, b: float) -> bool:  # noqa: PLR0911  # a table
    if code == _LESS:
        return a < b
    if code == _LESS_EQUAL:
        return a <= b
    if code == _EQUAL:
        return a == b
    if code == _NOT_EQUAL:
        return a != b
    if code == _AND:
        return a != 0.0 and b != 0.0
    if code == _OR:
        return a != 0.0 or b != 0.0
    return (a != 0.0) != (b != 0.0)


def _fold(code: int, a: FloatArray) -> float:
    value = 0.0 if code == _SUM else (-math.inf if code == _MAX else math.inf)
    for w in range(len(a)):
        if code == _SUM:
            value += a[w]
        elif code == _MAX:
            value = value if value > a[w] or math.isnan(value) else a[w]
        else:
            value = value if value < a[w] or math.isnan(value) else a[w]
    return value


def _least_place(a: FloatArray) -> float:
    """The first one's; what is not a number (NaN) is less than any, as for NumPy."""
    found = 0
    for w in range(len(a)):
        if a[w] < a[found] or (a[w] != a[w] and a[found] == a[found]):
            found = w
    return float(found)


def _linewise(code: int, line: FloatArray, a: FloatArray, places: FloatArray, spare: FloatArray) -> None:
    value = 0.0
    for w in range(len(line)):
        if code == _CUMSUM:
            value += a[w]
            line[w] = value
        elif code == _TAKE:
            line[w] = a[int(places[w])] if 0.0 <= places[w] < len(line) else math.nan
        else:
            line[w] = w
    if code == _ARGSORT:
        sort_by(a, line, spare, len(line))


def _fact(code: int, column: FloatArray, eligible: Any, option: float, spare: FloatArray) -> float:
    if code == _TOTAL:
        return total(column, eligible, option, spare)
    if code == _MOST:
        return most(column, eligible, option, spare)
    return lower_quantile(column, eligible, option, spare)


def _choose(code: int, cost: FloatArray, eligible: Any, option: float, spare: FloatArray, line: FloatArray) -> None:
    if code == _LEAST:
        fill_least(cost, eligible, option, spare, line)
    elif code == _SAMPLED_LEAST:
        fill_sampled_least(cost, eligible, option, spare, line)
    elif code == _SOFTMIN:
        fill_softmin(cost, eligible, option, spare, line)
    else:
        fill_in_proportion(cost, eligible, option, spare, line)


def _whole_line(p: FloatArray, i: int, lines: FloatArray, spare: FloatArray) -> None:
    """What is no matter of one place alone."""
    code, line, a = int(p[i]), lines[int(p[i + 1])], lines[int(p[i + 2])]
    if code in (_CUMSUM, _ARGSORT, _TAKE):
        _linewise(code, line, a, lines[int(p[i + 3])] if code == _TAKE else a, spare)
    elif code >= _LEAST:
        cost = lines[len(lines) - 1]
        for w in range(len(line)):
            cost[w] = a[w]
        _choose(code, cost, lines[int(p[i + 3])], p[i + 4], spare, line)
    else:
        if code >= _TOTAL:
            value = _fact(code, a, lines[int(p[i + 3])], p[i + 4], spare)
        else:
            value = _least_place(a) if code == _ARGMIN else _fold(code, a)
        for w in range(len(line)):
            line[w] = value


def _run(p: FloatArray, i: int, x: Any, lines: FloatArray, spare: FloatArray) -> None:
    """The operation that begins at the program's word `i`."""
    code, line = int(p[i]), lines[int(p[i + 1])]
    if code <= _INDEX:
        for w in range(len(line)):
            line[w] = _given(code, p[i + 2], w, x)
    elif code <= _NOT:
        a = lines[int(p[i + 2])]
        for w in range(len(line)):
            line[w] = _unary(code, a[w])
    elif code <= _XOR:
        a, b = lines[int(p[i + 2])], lines[int(p[i + 3])]
        for w in range(len(line)):
            line[w] = _binary(code, a[w], b[w])
    elif code == _WHERE:
        a, b, c = lines[int(p[i + 2])], lines[int(p[i + 3])], lines[int(p[i + 4])]
        for w in range(len(line)):
            line[w] = b[w] if a[w] != 0.0 else c[w]
    else:
        _whole_line(p, i, lines, spare)


def fill_program(
    program: FloatArray, columns: FloatArray, eligible: BoolArray, of_request: Any, scratch: FloatArray, out: FloatArray
) -> int:
    """Write what the program answers, which is -1, or `INVALID`.

    Args:
        program: One that `checked` has let pass.
        columns: Those of `READS`, `(c, n)`; only what the program reads.
        eligible: `(n,)`.
        of_request: The numbers of `OF_REQUEST`.
        scratch: At least `scratch_lines` times n numbers, of any value.
        out: The probabilities, `(n,)`, are written here.
    """
    n, count = len(out), int(program[LINES]) + _SPARE
    lines = scratch[: count * n].reshape(count, n)
    spare = scratch[(count - _SPARE) * n : (count - 1) * n]
    x = columns, eligible, of_request
    for k in range(int(program[COUNT])):
        _run(program, HEAD + WORDS * k, x, lines, spare)
    line, shares, fits = lines[int(program[RESULT])], 0.0, True
    for w in range(n):
        out[w] = line[w]
        shares += line[w]
        fits = fits and line[w] >= 0.0 and (eligible[w] or line[w] == 0.0)
    return -1 if fits and (shares == 0.0 or abs(shares - 1.0) < 1e-6) else INVALID


def fill_rows(program: Any, columns: Any, eligible: Any, of_request: Any, scratch: Any, out: Any) -> None:
    """`fill_program` for each row of `(r, c, n)`, `(r, n)`, `(r, of_request)`, `(r, n)`."""
    for row in range(len(out)):
        fill_program(program, columns[row], eligible[row], of_request[row], scratch, out[row])


def scratch_lines(program: FloatArray) -> int:
    """How many numbers a worker `fill_program` writes beside its answer."""
    return int(program[LINES]) + _SPARE


def answered(
    program: FloatArray, request: Request, fleet: FleetView, fill: Callable[..., None] = fill_rows
) -> FloatArray:
    """The program's probabilities over a view, `(..., n)`; `fill` is `fill_rows`, or compiled of it."""
    shape = fleet.eligible.shape
    n, rows = shape[-1], math.prod(shape[:-1])
    columns, of_request = np.zeros((rows, len(READS), n)), np.zeros((rows, len(OF_REQUEST)))
    for i, name in enumerate(READS):
        if int(program[COLUMNS]) >> i & 1:
            column = draws(request, fleet) if name == DRAW else getattr(fleet, name)
            columns[:, i] = np.broadcast_to(column, shape).reshape(rows, n)
    for i, name in enumerate(OF_REQUEST):
        value = float(request.key is not None) if name == "keyed" else getattr(request, name)
        of_request[:, i] = np.broadcast_to(np.asarray(value, np.float64), (*shape[:-1], 1)).reshape(rows)
    eligible, out = np.ascontiguousarray(fleet.eligible).reshape(rows, n), np.empty((rows, n))
    with np.errstate(all="ignore"):
        fill(program, columns, eligible, of_request, np.zeros(scratch_lines(program) * n), out)
    return out.reshape(shape)


def checked(program: FloatArray) -> FloatArray:
    """The program, whose interpreter, compiled, reads and writes within its arrays for fleets of any size.

    ValueError says what is wrong: nothing is read before it was written, and nothing is beyond its bounds.
    """
    if len(program) < HEAD or not np.isfinite(program[:HEAD]).all() or len(program) != HEAD + WORDS * program[COUNT]:
        raise ValueError("it is not as long as it says")
    if program[COUNT] > MOST_OPERATIONS or program[LINES] not in range(MOST_LINES + 1):
        raise ValueError("it is longer than any")
    written: set[float] = set()
    for code, target, *operands in program[HEAD:].reshape(-1, WORDS).tolist():
        if code not in range(len(NAMES)):
            raise ValueError(f"there is no operation {code}")
        name = NAMES[int(code)]
        lines = operands[: lines_of(name)]
        if target not in range(int(program[LINES])) or not written.issuperset(lines):
            raise ValueError(f"{name} works on lines that are not there")
        if target in lines:
            raise ValueError(f"{name} writes over what it reads")
        if (
            operands[0] not in range({"column": len(READS), "request": len(OF_REQUEST)}.get(name, 1))
            and name in GIVEN[1:3]
        ):
            raise ValueError(f"there is no {name} {operands[0]}")
        written.add(target)
    if program[RESULT] not in written:
        raise ValueError("its answer is not there")
    return program


def lines_of(name: str) -> int:
    """How many operands of the operation are lines, the first ones."""
    if name in GIVEN:
        return 0
    if name in TERNARY:
        return 3
    return 1 if name in UNARY or name in FOLDS or name in LINEWISE[:-1] else 2
