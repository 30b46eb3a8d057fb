"""Records of arrays as numba takes them: `record.field` reads from the block of a `record.Record`.

numba passes a named tuple by value, every array of it as some eight numbers, so a record of a hundred arrays costs more
to hand on than the work that is done with it, and minutes to compile.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, unbox
from numba.np import arrayobj

from balancer.kernel.compiled.call import Record

_WORD = ir.IntType(64)


class RecordType(types.Type):
    """The fields of a record, in order: name, numba's type of it, and its first word in the block."""

    def __init__(self, fields: tuple[tuple[str, Any, int], ...]) -> None:
        self.fields = fields
        super().__init__(name=f"Record({', '.join(f'{name}: {kind}' for name, kind, _ in fields)})")

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """What stands for it in the names of functions, of which each call has one: short, as there are hundreds."""
        return f"Record{hashlib.sha256(self.name.encode()).hexdigest()[:16]}", ()

    def field(self, name: str) -> tuple[Any, int] | None:
        """Type and first word."""
        return next(((kind, word) for field, kind, word in self.fields if field == name), None)


class Native(Record):
    """A record for compiled code; `numba_type` is what it is compiled for."""

    numba_type: RecordType
    _numba_type_: RecordType
    """The same, where numba finds it without asking Python, which would take longer than many a call."""

    def __init__(self, record: Any, fields: tuple[str, ...] = ()) -> None:
        super().__init__(record, fields)
        parts = iter(self.parts)
        found = [(name, _kind(value, parts)) for name, value in zip(self.fields, self.values, strict=True)]
        kinds = tuple((name, kind, place) for (name, kind), place in zip(found, self.places, strict=True))
        self.numba_type = self._numba_type_ = RecordType(kinds)


@functools.lru_cache(maxsize=256)
def _array(dtype: np.dtype[Any], dimensions: int, layout: Literal["C", "A"]) -> Any:
    return types.Array(numba.from_dtype(dtype), dimensions, layout)


def _kind(value: Any, parts: Iterator[Any]) -> Any:
    if isinstance(value, np.ndarray):
        # A field of a single record is contiguous too, but compiled for no other; of an array of nothing, such as a
        # network's without hidden units, strides say nothing.
        packed = value.flags.c_contiguous and (not value.size or value.strides[-1] == value.itemsize)
        layout: Literal["C", "A"] = "C" if packed else "A"
        return _array(value.dtype, value.ndim, layout)
    return types.int64 if isinstance(value, int) else next(parts).numba_type


@register_model(RecordType)
class _RecordModel(models.OpaqueModel):
    """A pointer."""


@unbox(RecordType)
def _unbox(kind: RecordType, value: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(value, "address")
    number = c.pyapi.long_as_ulonglong(address)
    c.pyapi.decref(address)
    return NativeValue(c.builder.inttoptr(number, cgutils.voidptr_t))


@infer_getattr
class _RecordFields(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record: RecordType, name: str) -> Any:  # type: ignore[override]  # numba's says nothing
        found = record.field(name)
        return found[0] if found else None


@lower_getattr_generic(RecordType)
def _read_field(context: Any, builder: Any, record: RecordType, pointer: Any, name: str) -> Any:
    found = record.field(name)
    assert found is not None
    kind, first = found
    words = builder.bitcast(pointer, _WORD.as_pointer())

    def word(i: int) -> Any:
        read = builder.load(builder.gep(words, [ir.Constant(_WORD, first + i)]))
        # The block stays as it is, whatever is written to the arrays, so that loops need to read it but once.
        read.set_metadata("invariant.load", builder.module.add_metadata([]))
        return read

    if isinstance(kind, RecordType):
        return builder.inttoptr(word(0), cgutils.voidptr_t)
    if not isinstance(kind, types.Array):
        return word(0)
    array = context.make_array(kind)(context, builder)
    itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    arrayobj.populate_array(
        array,
        data=builder.inttoptr(word(0), context.get_data_type(kind.dtype).as_pointer()),
        shape=[word(1 + i) for i in range(kind.ndim)],
        strides=[word(1 + kind.ndim + i) for i in range(kind.ndim)],
        itemsize=ir.Constant(_WORD, itemsize),
        meminfo=None,
    )
    return array._getvalue()
