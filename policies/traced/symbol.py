"""Stand-ins for arrays, and what NumPy's functions are as operations of a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from policies.traced.program import BINARY, UNARY
from policies.traced.tape import Line, Tape, Untraceable

_WORKERS = 11


class _Workers(int):
    """How many workers there are: a number as any other for shapes, and a line of the program in arithmetic."""

    tape: Tape

    def symbol(self) -> Symbol:
        return Symbol(self.tape, self.tape.line("workers", of_fleet=True))


def _of_workers(name: str) -> Any:
    # numpy.arange takes 0 from it and divides by 1, and then needs a number.
    nothing = {"__sub__": 0, "__truediv__": 1}.get(name)
    return lambda self, other: self if other is nothing else getattr(self.symbol(), name)(other)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
    for _side in ("", "r"):
        setattr(_Workers, f"__{_side}{_name}__", _of_workers(f"__{_side}{_name}__"))


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array, and writes down what is done with it."""

    def __init__(self, tape: Tape, line: Line, *, fixed: bool = False) -> None:
        self.tape, self.line, self.fixed = tape, line, fixed

    @property
    def ndim(self) -> int:
        """As if there were axes in front, or none."""
        return self.tape.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """The last one is a number of its own, see `_Workers`."""
        workers = _Workers(1 if self.line.of_fleet else _WORKERS)
        workers.tape = self.tape
        return (*(1,) * (self.tape.axes - 1), workers)

    @property
    def size(self) -> int:
        return self.shape[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(bool if self.line.is_bool else float)

    def __bool__(self) -> bool:
        """Both, one after the other."""
        if not self.line.of_fleet:
            raise Untraceable("it asks an array of workers for its truth, in a branch or a loop")
        return self.tape.taken(self.line)

    def _is_no_number(self, *_: Any) -> Any:
        raise Untraceable("it makes a number of Python's of what depends on the fleet: int, float, len, a loop")

    __int__ = __float__ = __index__ = __len__ = __iter__ = __array__ = _is_no_number

    def __getitem__(self, key: Any) -> Symbol:
        """All of it alone, or a further axis for what is one for the fleet."""
        keys = key if isinstance(key, tuple) else (key,)
        if all(each is ... or (isinstance(each, slice) and each == slice(None)) for each in keys):
            return self
        if self.line.of_fleet and all(each is ... or each is None for each in keys):
            return self
        raise Untraceable("it takes some of the workers, by place or by mask: another size")

    def __setitem__(self, key: Any, value: Any) -> None:
        """Where a mask says so, at one place, or everywhere."""
        if isinstance(key, tuple) and all(each is ... for each in key[:-1]):
            key = key[-1]
        if isinstance(key, Symbol):
            mask = key
            if key.line.of_fleet and not key.line.is_bool:
                mask = element(self.tape, "equal", Symbol(self.tape, self.tape.line("index")), key)
            if not mask.line.is_bool:
                raise Untraceable("it writes to several workers by their places")
            value = _where(self.tape, mask, value, self)
        elif not (key is ... or (isinstance(key, slice) and key == slice(None))):
            raise Untraceable("it writes to a worker by its place")
        self.become(value)

    def become(self, value: Any) -> Symbol:
        if self.fixed:
            raise Untraceable("it writes to a column")
        line = line_of(self.tape, value)
        self.line = Line(line.place, line.is_bool and self.line.is_bool, line.of_fleet and self.line.of_fleet)
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if method == "reduce" and ufunc.__name__ in _REDUCES:
            found = _REDUCES[ufunc.__name__](self.tape, *inputs, **options)
        elif method == "__call__" and set(options) <= {"where"} and options.get("where", True) is True:
            found = element(self.tape, ufunc.__name__, *inputs)
        else:
            raise Untraceable(f"it calls numpy.{ufunc.__name__} in a way that no program has")
        if out is None:
            return found
        if not isinstance(out[0], Symbol):
            raise Untraceable("it writes what depends on the fleet to an array of its own: take np.zeros_like")
        return out[0].become(found)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = _FUNCTIONS.get(function.__name__)
        if found is None:
            raise Untraceable(f"it calls numpy.{function.__name__}, which no program has")
        return found(self.tape, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return partial(_FUNCTIONS[name], self.tape, self)
        if name.startswith("__"):
            raise AttributeError(name)
        raise Untraceable(f"it takes .{name} of an array, which no program has")


def line_of(tape: Tape, value: Any) -> Line:
    if isinstance(value, Symbol):
        return value.line
    if isinstance(value, _Workers):
        return value.symbol().line
    array = np.asarray(value)
    if array.dtype.kind not in "bif" or not array.size:
        raise Untraceable(f"it computes with {type(value).__name__} {value!r:.40}")
    if (array == array.flat[0]).all() or array.size == 1:
        one = array.size == 1
        return tape.line("constant", float(array.flat[0]), is_bool=array.dtype.kind == "b", of_fleet=one)
    if array.shape[-1] == _WORKERS and (array == np.arange(_WORKERS)).all():
        return tape.line("index")
    raise Untraceable("it has an array of numbers of its own")


def element(tape: Tape, name: str, *inputs: Any) -> Symbol:
    lines = [line_of(tape, each) for each in inputs]
    bools = all(line.is_bool for line in lines)
    name = _ALIASES.get(name, name)
    if name in _MIRRORED:
        name, lines = _MIRRORED[name], lines[::-1]
    if name.startswith("bitwise") or name == "invert" or (bools and name in _OF_BOOLS):
        if not bools or name not in _OF_BOOLS:
            raise Untraceable(f"it calls numpy.{name} of numbers that are no bools")
        name = _OF_BOOLS[name]
    if name in _MADE_OF:
        return Symbol(tape, line_of(tape, _MADE_OF[name](*(Symbol(tape, line) for line in lines))))
    if (name not in UNARY and name not in BINARY) or (bools and name in ("subtract", "negative")):
        raise Untraceable(f"it calls numpy.{name}, which no program has")
    fleet = all(line.of_fleet for line in lines)
    return Symbol(tape, tape.line(name, *lines, is_bool=name in _TO_BOOLS, of_fleet=fleet))


def _power(a: Symbol, b: Symbol) -> Any:
    exponents = {place: key[1][0] for key, place in a.tape.operations.items() if key[0] == "constant"}
    exponent = exponents.get(b.line.place)
    if exponent in (1.0, 2.0, 3.0, 4.0):
        return _times(a, int(exponent))
    return np.sqrt(a) if exponent == 0.5 else np.exp(b * np.log(a))


def _times(a: Any, count: int) -> Any:
    return a if count == 1 else a * _times(a, count - 1)


_ALIASES = {"true_divide": "divide", "abs": "absolute", "fabs": "absolute", "mod": "remainder", "conjugate": "positive"}
_MIRRORED = {"greater": "less", "greater_equal": "less_equal"}
_OF_BOOLS = {
    **{"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor", "invert": "logical_not"},
    **{"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum": "logical_and"},
}
_TO_BOOLS = {name for name in (*UNARY, *BINARY) if name.startswith(("logical", "is", "less", "equal", "not_equal"))}
_MADE_OF: dict[str, Callable[..., Any]] = {
    "positive": lambda a: a,
    "square": lambda a: a * a,
    "reciprocal": lambda a: 1.0 / a,
    "power": _power,
    "float_power": _power,
    "sign": lambda a: np.where(np.isnan(a), a, (a > 0.0) * 1.0 - (a < 0.0) * 1.0),
    "expm1": lambda a: np.exp(a) - 1.0,
    "log2": lambda a: np.log(a) / np.log(2.0),
    "log10": lambda a: np.log(a) / np.log(10.0),
    "exp2": lambda a: np.exp(a * np.log(2.0)),
    "isinf": lambda a: abs(a) == np.inf,
    "trunc": lambda a: np.where(a < 0.0, np.ceil(a), np.floor(a)),
    "clip": lambda a, low, high: np.minimum(np.maximum(a, low), high),
}


def _where(tape: Tape, condition: Any, *values: Any) -> Symbol:
    if len(values) != 2:
        raise Untraceable("it asks numpy.where for places")
    lines = [line_of(tape, each) for each in (condition, *values)]
    kinds = {"is_bool": all(line.is_bool for line in lines[1:]), "of_fleet": all(line.of_fleet for line in lines)}
    return Symbol(tape, tape.line("where", *lines, **kinds))


def _over_workers(tape: Tape, array: Any, axis: Any, *, all_by_default: bool = True) -> Symbol:
    if axis not in ((None, -1, tape.axes - 1) if all_by_default or tape.axes == 1 else (-1, tape.axes - 1)):
        raise Untraceable("it reduces another axis than that of the workers")
    return Symbol(tape, line_of(tape, array))


def _reduce(
    name: str, to_bool: bool, tape: Tape, array: Any, axis: Any = None, dtype: Any = None, out: Any = None,
    keepdims: Any = False, initial: Any = None, where: Any = True,
) -> Symbol:  # fmt: skip
    del keepdims  # what is one for the fleet stands beside each worker
    if dtype not in (None, float, np.float64) or out is not None:
        raise Untraceable(f"it asks for the {name} in another type, or place")
    symbol = _over_workers(tape, array, axis)
    is_bool = to_bool or (symbol.line.is_bool and name != "sum")
    if where is not True:
        symbol = _where(tape, where, symbol, {"sum": 0.0, "max": -np.inf, "min": np.inf}[name])
    if to_bool and not symbol.line.is_bool:
        symbol = symbol != 0.0
    if not symbol.line.of_fleet:
        symbol = Symbol(tape, tape.line(name, symbol.line, is_bool=is_bool, of_fleet=True))
    if initial is None or initial is np._NoValue:
        return symbol
    return element(tape, {"sum": "add", "max": "maximum", "min": "minimum"}[name], symbol, initial)


_REDUCES: dict[str, Callable[..., Symbol]] = {
    name: partial(_reduce, of, to_bool)
    for name, of, to_bool in (
        *(("add", "sum", False), ("maximum", "max", False), ("minimum", "min", False)),
        *(("logical_or", "max", True), ("logical_and", "min", True)),
    )
}
_SUM, _ANY = _REDUCES["add"], _REDUCES["logical_or"]


def _mean(tape: Tape, array: Any, axis: Any = None, *, keepdims: Any = False, where: Any = True, **rest: Any) -> Any:
    count = _SUM(tape, np.ones_like(array) if where is True else (where != 0) * np.ones_like(array))
    return _SUM(tape, array, axis, where=where, **rest) / count


def _deviation(tape: Tape, array: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    away = array - _mean(tape, array, axis)
    return np.sqrt(_mean(tape, away * away, axis))


def _argmin(sign: float, tape: Tape, array: Any, axis: Any = None, *, keepdims: Any = False) -> Symbol:
    line = (_over_workers(tape, array, axis) * sign).line
    return Symbol(tape, tape.line("argmin", line, of_fleet=True))


def _along(name: str, tape: Tape, array: Any, axis: Any = -1, **options: Any) -> Symbol:
    if options.get("kind", "stable") not in ("stable", "mergesort", None) or set(options) - {"kind"}:
        raise Untraceable(f"it calls numpy.{name} in a way that no program has")
    line = _over_workers(tape, array, axis, all_by_default=False).line
    if name != "sort":
        return Symbol(tape, tape.line(name, line))
    return Symbol(tape, tape.line("take", line, tape.line("argsort", line)))


def _take(tape: Tape, array: Any, indices: Any, axis: Any = -1) -> Symbol:
    values, places = _over_workers(tape, array, axis, all_by_default=False).line, line_of(tape, indices)
    return Symbol(tape, tape.line("take", values, places, is_bool=values.is_bool, of_fleet=places.of_fleet))


def _put(tape: Tape, array: Any, indices: Any, values: Any, axis: Any = -1) -> None:
    _over_workers(tape, array, axis, all_by_default=False)[indices] = values


def _copyto(tape: Tape, array: Any, value: Any, casting: str = "same_kind", where: Any = True) -> None:
    if not isinstance(array, Symbol):
        raise Untraceable("it writes what depends on the fleet to an array of its own: take np.zeros_like")
    array.become(value if where is True else _where(tape, where, value, array))


def _filled(value: Any, tape: Tape, array: Any, fill: Any = None, dtype: Any = None, **_: Any) -> Symbol:
    line = line_of(tape, value if fill is None else fill)
    is_bool = line_of(tape, array).is_bool if dtype is None else np.dtype(dtype).kind == "b"
    return Symbol(tape, Line(line.place, is_bool, False))


def _as_type(tape: Tape, array: Symbol, dtype: Any = float, **_: Any) -> Any:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return array if array.line.is_bool else array != 0.0
    if kind not in "iuf" or np.dtype(dtype).itemsize != np.dtype(float).itemsize:
        raise Untraceable(f"it asks for numbers of type {dtype}")
    copied = Line(array.line.place, False, array.line.of_fleet)
    return Symbol(tape, copied) if kind == "f" or array.line.is_bool else np.trunc(Symbol(tape, copied))


def _copy(tape: Tape, array: Any, *_: Any, **__: Any) -> Symbol:
    return Symbol(tape, line_of(tape, array))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"where": _where, "mean": _mean, "std": _deviation, "take_along_axis": _take, "put_along_axis": _put},
    **{"sum": _SUM, "any": _ANY, "all": _REDUCES["logical_and"], "copyto": _copyto, "astype": _as_type},
    **{
        "max": _REDUCES["maximum"],
        "amax": _REDUCES["maximum"],
        "min": _REDUCES["minimum"],
        "amin": _REDUCES["minimum"],
    },
    **{"argmin": partial(_argmin, 1.0), "argmax": partial(_argmin, -1.0), "copy": _copy, "expand_dims": _copy},
    **{name: partial(_along, name) for name in ("cumsum", "sort", "argsort")},
    **{"broadcast_to": _copy, "clip": lambda tape, a, low, high: _MADE_OF["clip"](a, low, high)},
    "count_nonzero": lambda tape, array, axis=None, *, keepdims=False: _SUM(tape, array != 0.0, axis),
    "zeros_like": partial(_filled, 0.0),
    "empty_like": partial(_filled, 0.0),
    "ones_like": partial(_filled, 1.0),
    "full_like": partial(_filled, 0.0),
}
_METHODS = {"sum", "min", "max", "mean", "std", "any", "all", "argmin", "argmax", "cumsum", "copy", "clip", "astype"}
_METHODS |= {"argsort"}
