"""What the module for Envoy must know of requests, from the Python that declares it: `module/bounds.h`.

`python -m balancer.native.constants` writes it. The module understands requests as `balancer.gateway.kserve` does, and
types none of its constants again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from balancer.core import bounds
from balancer.gateway import kserve, names

PATH = Path(__file__).parent / "module" / "bounds.h"
_BOUNDS = (
    "MAX_TEXT_BYTES",
    "MAX_ROWS",
    "MAX_PRIORITY",
    "MAX_PARAMETERS",
    "MAX_FIELD_VALUES",
    "MAX_FIELD_BYTES",
    "MAX_PREFIX_BYTES",
    "MAX_JSON_BYTES",
    "SHOWN_CHARACTERS",
)
# The kinds that Triton takes (2.51). The gateway has to tell values apart by their keys, and so goes by those that
# Triton's clients give.
KINDS_OF_PARAMETER = {
    "sequence_id": ("int64_param", "string_param"),
    "priority": ("int64_param", kserve.KIND_OF_PARAMETER["priority"]),
    "timeout": (kserve.KIND_OF_PARAMETER["timeout"],),
}


def constants() -> str:
    """The text of the header."""
    lines = [f"#define BALANCER_{name} {getattr(bounds, name)}" for name in _BOUNDS]
    lines += [f"#define BALANCER_{name} {value}" for name, value in _deadlines().items()]
    lines += [f'#define BALANCER_{name} "{value}"' for name, value in _names().items()]
    lines += [f"#define BALANCER_{name}{_listed(values)}" for name, values in _tables().items()]
    lines += [f"enum balancer_kind {{ {', '.join(f'BALANCER_{kind.name}' for kind in kserve.Kind)} }};"]
    lines += [f"#define BALANCER_KINDS_OF_{name.upper()} {_mask(kinds)}" for name, kinds in KINDS_OF_PARAMETER.items()]
    return "\n".join((_BEGIN, *lines, "", "#endif\n"))


def write(path: Path = PATH) -> None:
    """Write the header, unless it is there as it should be, so that nothing is compiled anew for nothing."""
    text = constants()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _deadlines() -> dict[str, str]:
    most_ms = bounds.MAX_DEADLINE_S * 1000
    return {"MAX_DEADLINE_MS": f"{most_ms!r}", "MAX_DEADLINE_MS_SHOWN": f'"{most_ms:.0f}"'}


def _names() -> dict[str, str]:
    return {
        "SERVICE": kserve.SERVICE,
        "HEALTH": kserve.HEALTH,
        "REQUEST_ID_HEADER": names.REQUEST_ID_HEADER,
    }


def _tables() -> dict[str, Iterable[str]]:
    """Initialisers of arrays."""
    default = kserve.HeaderNames()
    return {
        "METHODS": [_kind(method, kind) for method, kind in kserve.METHODS.items()],
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
    """Of the kinds as `module/facts.h` calls them."""
    return f"({' | '.join(f'1U << BALANCER_{kind.upper()}' for kind in kinds)})"


def _listed(values: Iterable[str]) -> str:
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


_BEGIN = """\
/* What requests may say, and how calls are named. Made by `python -m balancer.native.constants`. */
#ifndef BALANCER_BOUNDS_H
#define BALANCER_BOUNDS_H
"""

if __name__ == "__main__":
    write()
    print(f"written: {PATH}", file=sys.stderr)
