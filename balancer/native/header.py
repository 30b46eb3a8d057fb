"""The headers of Envoy's module, made of the Python that declares what is in them: `python -m balancer.native.header`.

`bounds.h`: what requests may say, so that the module understands them as `balancer.extproc.kserve` does. `shared.h`:
what lies in shared memory, and the words of refusals. `DIGEST` tells the content of that one: a module that was built
from another one is not loaded, and an Envoy that has such a module does not touch this balancer's files.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import EnumMeta
from itertools import groupby
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from balancer import bounds
from balancer.extproc import kserve, names
from balancer.extproc.inference_bytes import TRITON_PROMPT
from balancer.extproc.prompts import BLOCK_BYTES, TOKENS_A_BYTE
from balancer.extproc.responses import (
    CODES,
    INVALID_CODES,
    OF_ABORTED,
    OF_GRPC,
    OF_HTTP,
    PUSHBACK,
    PUSHBACK_MS,
    Verdict,
    openai_error,
)
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from balancer.kernel.fleet_state import RECORDS
from balancer.native.layouts import DIRECTORY_MAGIC, ENDERS, ENUMS, PORTS, SEEN, SIZES, STRUCTS, VOIDS, Struct
from balancer.scheduler import errors
from balancer.scheduler.errors import Shed

SOURCES = Path(__file__).resolve().parents[2] / "envoy" / "module"
"""The module's, in C; not there where the package is installed."""
_BOUNDS = (
    "MAX_TEXT_BYTES",
    "MAX_ROWS",
    "MAX_PRIORITY",
    "MAX_PARAMETERS",
    "MAX_FIELD_VALUES",
    "MAX_FIELD_BYTES",
    "MAX_PREFIX_BYTES",
    "MAX_JSON_BYTES",
    "MAX_INFLATED_BYTES",
    "MAX_INFLATING",
    "MAX_PROMPT_BYTES",
    "MAX_PROMPT_INPUTS",
    "MAX_PROMPT_TOKENS",
    "SHOWN_CHARACTERS",
)
# The kinds that Triton takes (2.51). The gateway has to tell values apart by their keys, and so goes by those that
# Triton's clients give.
KINDS_OF_PARAMETER = {
    "sequence_id": ("int64_param", "string_param"),
    "priority": ("int64_param", kserve.KIND_OF_PARAMETER["priority"]),
    "timeout": (kserve.KIND_OF_PARAMETER["timeout"],),
}


_NAMES = {
    "NAME_SPACE": names.DECISION_NAMESPACE,
    "NAME_ASKING": names.ASKING,
    "NAME_ASKING_HEADER": names.ASKING_HEADER,
    "NAME_FORWARDABLE": names.FORWARDABLE,
    "NAME_FORWARDED": names.FORWARDED,
    "NAME_FORWARDED_HEADER": names.FORWARDED_HEADER,
    "NAME_DESTINATION": names.DESTINATION,
    "NAME_LEAVES_METADATA": names.LEAVES_METADATA,
    "NAME_TRITON_ID": names.TRITON_ID_KEY,
    "NAME_POLICY": names.POLICY_KEY,
    "NAME_NUMBER": names.NUMBER_KEY,
    "NAME_PICK_US": names.PICK_US_KEY,
    "NAME_MODEL": names.MODEL_KEY,
    "NAME_MAX_RETRIES": names.MAX_RETRIES,
    "NAME_PUSHBACK": PUSHBACK,
}
_NAMES_OF_CALLS = {
    "SERVICE": kserve.SERVICE,
    "HEALTH": kserve.HEALTH,
    "REQUEST_ID_HEADER": names.REQUEST_ID_HEADER,
    "TRITON_PROMPT": TRITON_PROMPT,
}
_PROMPTS = {"TOKENS_A_BYTE": TOKENS_A_BYTE, "BLOCK_BYTES": BLOCK_BYTES, "MOST_CHECKPOINTS": MOST_CHECKPOINTS}
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
            "/* Of the fleet's state: which array, and whether it has a column for each model. */",
            f"#define JOURNAL_ARRAYS {_listed(_seen())}",
            "",
            "/* Arguments of `turn_away`: both codes, and the words. What a template quotes comes quoted. */",
            *(_refusal(name, getattr(errors, name)) for name in _WORDS),
            f"#define CODES_INVALID {_listed(INVALID_CODES)}",
            f"#define CODES_EXHAUSTED {_listed(CODES[Shed])}",
            f"#define GRPC_SHED {CODES[Shed][1]}",
            f"#define OPENAI_ERRORS {_listed(_openai_errors())}",
            f"#define PUSHBACK_MS {PUSHBACK_MS}",
            "",
            "/* First status, last status, whether it is a success, and why it says nothing of the worker. */",
            f"#define VERDICTS_OF_GRPC {_listed(_verdicts(OF_GRPC))}",
            f"#define VERDICTS_OF_ABORTED {_listed(_verdicts({ENDERS.index(by): v for by, v in OF_ABORTED.items()}))}",
            f"#define VERDICTS_OF_HTTP {_listed(_verdicts(OF_HTTP))}",
        )
    )


def text() -> str:
    """Of `shared.h`."""
    return f'{_BEGIN}{_content()}\n\n#define SHARED_DIGEST "{DIGEST}"\n\n#endif\n'


def write() -> None:
    """Write both, unless they are there as they should be, so that nothing is compiled anew for nothing."""
    for name, content in (("bounds.h", constants()), ("shared.h", text())):
        path = SOURCES / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")


def constants() -> str:
    """Of `bounds.h`."""
    lines = [f"#define BALANCER_{name} {getattr(bounds, name)}" for name in _BOUNDS]
    lines += [f"#define BALANCER_{name} {value}" for name, value in {**_deadlines(), **_PROMPTS}.items()]
    lines += [f'#define BALANCER_{name} "{value}"' for name, value in _NAMES_OF_CALLS.items()]
    lines += [f"#define BALANCER_{name}{_in_lines(values)}" for name, values in _tables().items()]
    lines += [f"enum balancer_port {{ {', '.join(f'BALANCER_{port.upper()}_PORT' for port in PORTS)} }};"]
    lines += [f"enum balancer_kind {{ {', '.join(f'BALANCER_{kind.name}' for kind in kserve.Kind)} }};"]
    lines += [f"#define BALANCER_KINDS_OF_{name.upper()} {_mask(kinds)}" for name, kinds in KINDS_OF_PARAMETER.items()]
    return "\n".join((_BEGIN_BOUNDS, *lines, "", "#endif\n"))


def _deadlines() -> dict[str, str]:
    most_ms = bounds.MAX_DEADLINE_S * 1000
    return {"MAX_DEADLINE_MS": f"{most_ms!r}", "MAX_DEADLINE_MS_SHOWN": f'"{most_ms:.0f}"'}


def _tables() -> dict[str, Iterable[str]]:
    default = kserve.HeaderNames()
    return {
        "METHODS": [_kind(method, kind) for method, kind in kserve.METHODS.items()],
        "PROMPT_PATHS": [f'"{path}"' for path in (names.CHAT, names.COMPLETIONS)],
        "REST_SERVER": [f'"{path}"' for path in sorted(kserve.REST_SERVER)],
        "REST_VERBS": [_kind(verb, kind) for verb, kind in kserve.REST_VERBS.items()],
        "TIMEOUT_UNITS": [f"{{'{unit}', {seconds!r}}}" for unit, seconds in kserve.TIMEOUT_UNITS_S.items()],
        "HEADER_NAMES": [_span(getattr(default, field.name)) for field in fields(default)],
        "UNPRINTABLE": [f"{{0x{first:x}, 0x{last:x}}}" for first, last in _unprintable()],
    }


def _kind(name: str, kind: kserve.Kind) -> str:
    return f'{{"{name}", BALANCER_{kind.name}}}'


def _span(name: str | None) -> str:
    return "{NULL, 0}" if name is None else f'{{"{name}", {len(name)}}}'


def _mask(kinds: Iterable[str]) -> str:
    """Of the kinds as `envoy/module/request.h` calls them."""
    return f"({' | '.join(f'1U << BALANCER_{kind.upper()}' for kind in kinds)})"


def _in_lines(values: Iterable[str]) -> str:
    return "".join(f" \\\n  {value}," for value in values)


def _unprintable() -> Iterator[tuple[int, int]]:
    """First and last of each range of characters that `str.isprintable` refuses, above ASCII's."""
    first = None
    for point in range(0, sys.maxunicode + 2):
        refused = point <= sys.maxunicode and not chr(point).isprintable()
        if refused and first is None:
            first = point
        elif not refused and first is not None:
            yield first, point - 1
            first = None


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


def _refusal(name: str, words: errors.RefusalText) -> str:
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
    ordered, voids = sorted(table.items()), dict(zip(VOIDS, tuple(ENUMS["void_kind"]), strict=True))
    for _, run in groupby(enumerate(ordered), lambda each: (each[1][0] - each[0], each[1][1])):
        statuses = [item for _, item in run]
        ok, void = statuses[0][1]
        yield f"{{{statuses[0][0]}, {statuses[-1][0]}, {{{str(ok).lower()}, {voids[void]}}}}}"


def _openai_errors() -> Iterator[str]:
    """Of each HTTP status that is answered: type and code, the latter as JSON."""
    codes = [INVALID_CODES, *CODES.values()]
    for status in sorted({http for http, _ in codes}):
        error = openai_error(status, "")
        yield f'{{{status}, "{error["type"]}", "{json.dumps(error["code"]).replace(chr(34), chr(92) + chr(34))}"}}'


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


_BEGIN_BOUNDS = """\
/* What requests may say, and how calls are named. Made by `python -m balancer.native.header`. */
#ifndef BALANCER_BOUNDS_H
#define BALANCER_BOUNDS_H
"""
_BEGIN = """\
/* What the module shares with the balancer. Made by `python -m balancer.native.header`. */
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
    print(f"written: bounds.h and shared.h in {SOURCES}", file=sys.stderr)
