"""`module/shared.h`: what Envoy's module and Python must agree on, made from the Python that declares it.

`python -m balancer.front.header` writes it. `DIGEST` tells its content: a module that was built from another one is not
loaded, and an Envoy that has such a module does not touch this balancer's files.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from enum import EnumMeta
from itertools import groupby
from string import Formatter
from typing import Any

import numpy as np

from balancer.core import refusals
from balancer.core.errors import Shed
from balancer.core.kernel.books import RECORDS
from balancer.front.journal_layouts import SEEN
from balancer.front.layouts import DIRECTORY_MAGIC, ENDERS, ENUMS, SIZES, STRUCTS, void_kind
from balancer.front.structs import Struct
from balancer.gateway import names
from balancer.gateway.responses import CODES, INVALID_CODES
from balancer.gateway.verdict import OF_ABORTED, OF_GRPC, OF_HTTP, Verdict
from balancer.native.library import PATH as KERNEL

PATH = KERNEL.parent / "module" / "shared.h"
_NAMES = {
    "NAME_SPACE": names.DECISION_NAMESPACE,
    "NAME_ASKING": names.ASKING,
    "NAME_ASKING_HEADER": names.ASKING_HEADER,
    "NAME_FORWARDABLE": names.FORWARDABLE,
    "NAME_FORWARDED": names.FORWARDED,
    "NAME_FORWARDED_HEADER": names.FORWARDED_HEADER,
    "NAME_DESTINATION": names.DESTINATION,
    "NAME_TOLD": names.TOLD,
    "NAME_TRITON_ID": names.TRITON_ID_KEY,
    "NAME_POLICY": names.POLICY_KEY,
    "NAME_NUMBER": names.NUMBER_KEY,
    "NAME_PICK_US": names.PICK_US_KEY,
    "NAME_MODEL": names.MODEL_KEY,
    "NAME_MAX_RETRIES": names.MAX_RETRIES,
}
_WORDS = ("UNKNOWN", "UNKNOWN_VERSION", "NOBODY", "FULL", "LATE", "SHED")
_TYPES = {np.dtype(f"{kind}{size}"): f"{'u' * (kind == 'u')}int{8 * size}_t" for kind in "iu" for size in (1, 2, 4, 8)}
_TYPES |= {np.dtype(np.float64): "double"} | {struct.dtype: f"struct {struct.name}" for struct in STRUCTS}


def _content() -> str:
    return "\n".join(
        (
            *_enums(),
            *(f'#define {name} "{text}"' for name, text in _NAMES.items()),
            f"#define DIRECTORY_MAGIC UINT64_C({DIRECTORY_MAGIC:#x})",
            *(line for struct in STRUCTS for line in _struct(struct)),
            "",
            "/* Of the books: which array, and whether it has a column for each model. */",
            f"#define JOURNAL_ARRAYS {_listed(_seen())}",
            "",
            "/* Arguments of `turn_away`: both codes, and the words. What a template quotes comes quoted. */",
            *(_refusal(name, getattr(refusals, name)) for name in _WORDS),
            f"#define CODES_INVALID {_listed(INVALID_CODES)}",
            f"#define GRPC_SHED {CODES[Shed][1]}",
            "",
            "/* First status, last status, whether it is a success, and why it says nothing of the worker. */",
            f"#define VERDICTS_OF_GRPC {_listed(_verdicts(OF_GRPC))}",
            f"#define VERDICTS_OF_ABORTED {_listed(_verdicts({ENDERS.index(by): v for by, v in OF_ABORTED.items()}))}",
            f"#define VERDICTS_OF_HTTP {_listed(_verdicts(OF_HTTP))}",
        )
    )


def text() -> str:
    """The header."""
    return f'{_BEGIN}{_content()}\n\n#define SHARED_DIGEST "{DIGEST}"\n\n#endif\n'


def write() -> None:
    """Write the header, unless it is there as it should be, so that nothing is compiled anew for nothing."""
    if not PATH.exists() or PATH.read_text(encoding="utf-8") != text():
        PATH.write_text(text(), encoding="utf-8")


def _enums() -> Iterator[str]:
    for name, members in ENUMS.items():
        listed = [f"{member.name} = {member.value}" for member in members] if isinstance(members, EnumMeta) else members
        yield f"enum {name} {{ {_listed(listed)} }};"
    yield f"enum {{ {_listed(f'{name} = {value}' for name, value in SIZES.items())} }};"


def _struct(struct: Struct) -> Iterator[str]:
    dtype = struct.dtype
    yield from ("", f"/* {struct.says} */", f"struct {struct.name} {{")
    for name, _, says in struct.fields:
        yield f"  {_declared(name, dtype[name])};{f' /* {says} */' if says else ''}"
    yield "};"
    checks = [f"sizeof(struct {struct.name}) == {dtype.itemsize}"]
    assert dtype.fields is not None
    checks += [f"offsetof(struct {struct.name}, {name}) == {place[1]}" for name, place in dtype.fields.items()]
    yield from (f'_Static_assert({check}, "as NumPy has it");' for check in checks)


def _declared(name: str, kind: np.dtype[Any]) -> str:
    kind, lengths = (kind.base, kind.shape) if kind.shape else (kind, ())
    if kind.kind == "S":
        lengths, of = (*lengths, kind.itemsize), "char"
    else:
        of = _TYPES[kind]
    return f"{of} {name}{''.join(f'[{length}]' for length in lengths)}"


def _seen() -> Iterator[str]:
    for record, arrays in SEEN.items():
        for name in arrays:
            of_model = "m" in RECORDS[record][name][0].split()
            yield f"{{BALANCER_{record.upper()}_{name.upper()}, {str(of_model).lower()}}}"


def _refusal(name: str, words: refusals.Words) -> str:
    """A macro whose parameters are the template's fields; one without a format is a text."""
    written, parameters, arguments = "", [], []
    for literal, field, spec, _ in Formatter().parse(words.text):
        written += literal.replace("%", "%%")
        if field is not None:
            written += f"%{spec}" if spec else "%.*s"
            parameters.append(field)
            arguments.append(field if spec else f"SHOWN({field})")
    codes = _listed(CODES[words.error])
    return f'#define SAY_{name}({_listed(parameters)}) {codes}, "{written}", {_listed(arguments)}'


def _verdicts(table: dict[int, Verdict]) -> Iterator[str]:
    ordered = sorted(table.items())
    for _, run in groupby(enumerate(ordered), lambda each: (each[1][0] - each[0], each[1][1])):
        statuses = [item for _, item in run]
        ok, void = statuses[0][1]
        yield f"{{{statuses[0][0]}, {statuses[-1][0]}, {{{str(ok).lower()}, {void_kind(void)}}}}}"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


_BEGIN = """\
/* What the module shares with the balancer. Made by `python -m balancer.front.header`. */
#ifndef MODULE_SHARED_H
#define MODULE_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

"""
DIGEST = hashlib.sha256(_content().encode()).hexdigest()[:15]
"""Fits 16 bytes with a zero at its end."""

if __name__ == "__main__":
    write()
    print(f"written: {PATH}", file=sys.stderr)
