"""Records of arrays as compiled code sees them: one pointer, whatever is in them.

numba passes a named tuple by value, every array of it as some eight numbers, so a record of a hundred arrays costs more
to hand on than the work that is done with it, and minutes to compile. Here a record is a block of 64-bit words (an
array's address, shape and strides; a number; the address of a nested record), and `record.field` reads from it.
"""

from __future__ import annotations

from typing import Any, Literal

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, unbox
from numba.np import arrayobj

_WORD = ir.IntType(64)


class RecordType(types.Type):
    """The fields of a record, in order: name, numba's type of it, and its first word in the block."""

    def __init__(self, fields: tuple[tuple[str, Any, int], ...]) -> None:
        self.fields = fields
        super().__init__(name=f"Record({', '.join(f'{name}: {kind}' for name, kind, _ in fields)})")

    def field(self, name: str) -> tuple[Any, int] | None:
        """Type and first word."""
        return next(((kind, word) for field, kind, word in self.fields if field == name), None)


class Native:
    """A record (a named tuple of arrays, whole numbers and such records) for compiled code; keeps the arrays alive."""

    numba_type: RecordType
    _numba_type_: RecordType
    """The same, where numba finds it without asking Python, which would take longer than many a call."""
    address: int

    def __init__(self, record: Any) -> None:
        self._record = record
        self._parts: list[Native] = []
        words: list[int] = []
        fields = []
        for name, value in zip(record._fields, record, strict=True):
            first = len(words)
            if isinstance(value, np.ndarray):
                # A field of a single record is contiguous too, but compiled for no other.
                packed = value.flags.c_contiguous and value.strides[-1] == value.itemsize
                layout: Literal["C", "A"] = "C" if packed else "A"
                kind: Any = types.Array(numba.from_dtype(value.dtype), value.ndim, layout)
                words += [value.ctypes.data, *value.shape, *value.strides]
            elif isinstance(value, int):
                kind = types.int64
                words.append(value)
            else:
                part = Native(value)
                self._parts.append(part)
                kind = part.numba_type
                words.append(part.address)
            fields.append((name, kind, first))
        self.numba_type = self._numba_type_ = RecordType(tuple(fields))
        self._block = np.array(words, np.int64)
        self.address = int(self._block.ctypes.data)


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
