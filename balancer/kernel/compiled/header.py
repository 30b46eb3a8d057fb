"""The library's header for C, `kernel.h`, from the declarations that the library itself is made of."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from balancer.kernel import block as blocks
from balancer.kernel import deciding
from balancer.kernel.compiled import call as slots
from balancer.kernel.compiled.call import FLEET_STATE, Record
from balancer.kernel.fleet_state import FIELDS, KINDS, arrays_of
from balancer.kernel.state import Options, lengths_of
from policies.learned.network import Network

_C_TYPES = {"u8": "uint64_t", "i8": "int64_t", "S": "char", "q": "int64_t", "d": "double", "Q": "uint64_t"}
_C_KINDS = {"f": "double", "u": "uint64_t", "b": "bool", "i": "int64_t"}
_RECORDS = {**KINDS, "weights": Network}
_ANY = "{-1, 0, 0}"
_CODES = (
    *("FRESH", "LIMITS", "DRAWS", "NAMES", "COUNTS", "SEQUENCE", "ONE", "AT_ONCE"),
    *("NOBODY", "FULL", "LATE", "SHED"),
)


class _Words(NamedTuple):
    """A record and those in it, one after the other."""

    arrays: list[tuple[int, np.ndarray[Any, Any]]]
    """First word, and a sample."""
    links: list[tuple[int, int]]
    """Words that hold the address of other words."""
    size: int


def header_of(entries: Mapping[str, str], stamp: str, fleet_state: Any) -> str:
    """The text of the header.

    Args:
        entries: The library's functions, and what each says of itself.
        stamp: Of the library.
        fleet state: Of any fleet.
    """
    of_fleet_state, of_options = _words(Record(fleet_state, FLEET_STATE)), _words(Record(Options(np.zeros(1))))
    call = slots.new_call()[1]
    of_call = _words(Record(call))
    parts = [
        _BEGIN,
        _constants(stamp, of_fleet_state, of_options, of_call),
        _struct("balancer_array", blocks.OF_ARRAY, "What a block says of an array."),
        _struct("balancer_block", blocks.OF_HEADER, "What a block begins with."),
        _enum("balancer_fleet_state", "FLEET_STATE", {name: _of_fleet_state(name) for name in FIELDS}),
        _enum("balancer_options", "OPTIONS", {name: _of_options(name) for name in arrays_of(Options(np.zeros(1)))}),
        _call(call),
        _BIND,
        _binding("fleet_state", "FLEET_STATE", of_fleet_state, [_lengths(axes) for axes, _, _ in FIELDS.values()]),
        _binding("options", "OPTIONS", of_options, [[_ANY] * array.ndim for _, array in of_options.arrays]),
        _binding_of_call(call, of_call),
        _FUNCTIONS,
        "\n".join(f"/* {_comment(says)} */\nbalancer_function balancer_{name};" for name, says in entries.items()),
        "#endif\n",
    ]
    return "\n".join(parts).lstrip().replace("\n\n\n", "\n\n")


def _words(record: Record, base: int = 0) -> _Words:
    arrays, links, end, parts = [], [], base + record.size, iter(record.parts)
    for place, value in zip(record.places, record.values, strict=True):
        if isinstance(value, np.ndarray):
            arrays.append((base + place, value))
        else:
            inner = _words(next(parts), end)
            links += [(base + place, end), *inner.links]
            arrays += inner.arrays
            end = inner.size
    return _Words(arrays, links, end)


def _constants(stamp: str, of_fleet_state: _Words, of_options: _Words, of_call: _Words) -> str:
    values = {
        "MAGIC": f"UINT64_C(0x{blocks.MAGIC:x})",
        "ABI": blocks.ABI,
        "STAMP": f'"{stamp}"',
        "FLEET_STATE": blocks.FLEET_STATE,
        "OPTIONS": blocks.OPTIONS,
        "FLEET_STATE_WORDS": of_fleet_state.size,
        "OPTIONS_WORDS": of_options.size,
        "CALL_WORDS": of_call.size,
        **{name: f"({getattr(deciding, name)})" for name in _CODES},
    }
    return "".join(f"#define BALANCER_{name} {value}\n" for name, value in values.items())


def _comment(text: str) -> str:
    return " ".join(text.replace("*/", "").split())


def _member(kind: str, name: str, count: Iterable[int], says: str) -> str:
    return f"  {kind} {name}{''.join(f'[{n}]' for n in count)}; /* {_comment(says)} */\n"


def _struct(name: str, declared: blocks.Declared, says: str) -> str:
    fields = (
        _member(_C_TYPES[kind], field, [count] if count > 1 else [], text)
        for field, (kind, count, text) in declared.items()
    )
    return f"/* {says} */\nstruct {name} {{\n{''.join(fields)}}};\n"


def docs_of(kind: type[Any]) -> dict[str, str]:
    """What stands below each field of a class in its source."""
    (body,) = [node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if hasattr(node, "body")]
    found = {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            found[field.target.id] = str(ast.literal_eval(after.value))
    return found


def _of_fleet_state(name: str) -> str:
    record, field = name.split(".")
    axes, dtype, _ = FIELDS[name]
    # There is one fleet here, which one balancer knows.
    lengths = "".join(f"[{ {'r': 'n', 'f': 'e'}.get(axis, axis) }]" for axis in axes.split())
    says = docs_of(_RECORDS[record]).get(field, "")
    return f"{_C_KINDS[np.dtype(dtype).kind]} {lengths} {says}"


def _of_options(name: str) -> str:
    kind, _, field = name.rpartition(".")
    return f"double {docs_of(_RECORDS[kind] if kind else Options).get(field, '')}"


def _enum(name: str, kind: str, arrays: Mapping[str, str]) -> str:
    prefix = "" if kind == "FLEET_STATE" else "OPTIONS_"
    places = "".join(
        f"  BALANCER_{prefix}{array.replace('.', '_').upper()}, /* {_comment(says)} */\n"
        for array, says in arrays.items()
    )
    scratch = lengths_of(1, 0)["scratch"]
    lengths = ", ".join(
        f"{axis}: {length}" for axis, length in lengths_of(0, 0).items() if axis not in "nrm" and length > 1
    )
    says = (
        f"n: workers, m: models, e: 1, {lengths}, scratch: {scratch} n; settings: see balancer/kernel/state.py"
        if kind == "FLEET_STATE"
        else "A policy's numbers; weights: see policies/learned/network.py"
    )
    return f"/* Arrays of {kind.lower()}. {says}. */\nenum {name} {{\n{places}  BALANCER_{kind}_ARRAYS\n}};\n"


def _lengths(axes: str) -> list[str]:
    """Of each axis: a constant, and how many times the workers and the models come on top."""
    none, worker, model = lengths_of(0, 0), lengths_of(1, 0), lengths_of(0, 1)
    return [f"{{{none[axis]}, {worker[axis] - none[axis]}, {model[axis] - none[axis]}}}" for axis in axes.split()]


def _binding(name: str, kind: str, words: _Words, lengths: list[list[str]]) -> str:
    places = "".join(
        f"    {{{word}, {array.ndim}, '{array.dtype.kind}', {{{', '.join(of_axes)}}}}},\n"
        for (word, array), of_axes in zip(words.arrays, lengths, strict=True)
    )
    links = ", ".join(f"{{{word}, {to}}}" for word, to in words.links)
    return f"""
static inline enum balancer_status balancer_bind_{name}(void *block, uint64_t bytes,
                                                        int64_t words[BALANCER_{kind}_WORDS]) {{
  static const struct balancer_place places[] = {{
{places}  }};
  static const int links[][2] = {{{links}}};
  for (size_t i = 0; i < sizeof links / sizeof *links; i++)
    words[links[i][0]] = (int64_t)(intptr_t)(words + links[i][1]);
  return balancer_bind(block, bytes, BALANCER_{kind}, BALANCER_{kind}_ARRAYS, places, words);
}}
"""


def _call(call: slots.KernelCall) -> str:
    fields = []
    for place, (name, (kind, says)) in enumerate(slots.DECLARED.items()):
        last = place == len(slots.DECLARED) - 1
        fields.append(_member(_C_TYPES[kind], name.lower(), [slots.SLOTS - place] if last else [], says))
    for name, array in _beside_slots(call).items():
        fields.append(_member("double", f"report_{name}", array.shape, "see balancer/kernel/reports.py"))
    return f"/* What a function is given, and what it writes. */\nstruct balancer_call {{\n{''.join(fields)}}};\n"


def _beside_slots(call: slots.KernelCall) -> dict[str, np.ndarray[Any, Any]]:
    return {name: array for name, array in call._asdict().items() if not np.shares_memory(array, call.numbers)}


def _binding_of_call(call: slots.KernelCall, words: _Words) -> str:
    beside = _beside_slots(call)
    lines = []
    for name, (word, array) in zip(call._fields, words.arrays, strict=True):
        start = f"call->report_{name}" if name in beside else "call"
        lines.append(f"  words[{word}] = (int64_t)(intptr_t){start};")
        lines += [
            f"  words[{word + 1 + place}] = {number};" for place, number in enumerate((*array.shape, *array.strides))
        ]
    body = "\n".join(lines)
    return f"""
static inline void balancer_bind_call(struct balancer_call *call, int64_t words[BALANCER_CALL_WORDS]) {{
{body}
}}
"""


_BEGIN = """
/* The balancer's kernel for C. Made by `python -m balancer.kernel.compiled.build`; kernel.so is of the same sources.

   A fleet's state is one block of memory, a policy's numbers are another (see README.md). To decide: map both, the
   policy's privately, as its scratch is written to; bind them and a call to words of your own; write who may be
   picked to the array decision.mask, and BALANCER_AT_ONCE to `how`; call balancer_answer_POLICY, or what the
   options' header names: it counts the request in, and returns the worker's row, or why nobody gets it.

   Bind anew when a block's generation has changed, map anew when it is not in force. The policy's room_workers have to
   be no fewer than the fleet's workers. Rows and columns in a call are not checked against the block. Nothing is
   atomic: one at a time may call or write. */
#ifndef BALANCER_KERNEL_H
#define BALANCER_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
"""

_BIND = """
enum balancer_status {
  BALANCER_FITS,
  BALANCER_NO_BLOCK,
  BALANCER_OTHER_ABI,
  BALANCER_OTHER_STAMP,
  BALANCER_OTHER_KIND,
  BALANCER_TOO_SHORT,
  BALANCER_BAD_ARRAY
};

static inline const char *balancer_status_text(enum balancer_status status) {
  static const char *const texts[] = {
    "fits",
    "no block",
    "a block of another version",
    "a block of other sources",
    "a block of another kind",
    "a block longer than its memory",
    "an array is not within the block, or not as long as it has to be",
  };
  return texts[status];
}

/* Where an array lies; of a block that was bound without objection. */
static inline void *balancer_at(void *block, int array) {
  struct balancer_array entry;
  const char *table = (const char *)block + sizeof(struct balancer_block);
  memcpy(&entry, table + (size_t)array * sizeof entry, sizeof entry);
  return (char *)block + entry.offset;
}

/* An array of a record: its first word, axes, type, and of each axis a constant, and how many times workers and models
   come on top; -1: of any length. */
struct balancer_place {
  int word, axes;
  char type;
  int length[3][3];
};

/* Check a block, and write the words by which compiled functions find its arrays. What is checked is read once. */
static inline enum balancer_status balancer_bind(void *block, uint64_t bytes, uint64_t kind, uint64_t arrays,
                                                 const struct balancer_place *places, int64_t *words) {
  struct balancer_block head;
  if (bytes < sizeof head) return BALANCER_NO_BLOCK;
  memcpy(&head, block, sizeof head);
  if (head.magic != BALANCER_MAGIC) return BALANCER_NO_BLOCK;
  if (head.abi != BALANCER_ABI) return BALANCER_OTHER_ABI;
  if (memcmp(head.stamp, BALANCER_STAMP, sizeof head.stamp)) return BALANCER_OTHER_STAMP;
  if (head.kind != kind || head.arrays != arrays) return BALANCER_OTHER_KIND;
  if (head.bytes > bytes || sizeof head + arrays * sizeof(struct balancer_array) > bytes) return BALANCER_TOO_SHORT;
  if (head.workers > UINT32_MAX || head.models > UINT32_MAX) return BALANCER_BAD_ARRAY;
  for (uint64_t i = 0; i < arrays; i++) {
    struct balancer_array entry;
    memcpy(&entry, (const char *)block + sizeof head + i * sizeof entry, sizeof entry);
    if (entry.axes != (uint64_t)places[i].axes || entry.type != (uint64_t)places[i].type) return BALANCER_BAD_ARRAY;
    uint64_t size = places[i].type == 'b' ? 1 : 8;
    int64_t *word = words + places[i].word;
    for (int axis = places[i].axes - 1; axis >= 0; axis--) {
      const int *length = places[i].length[axis];
      int64_t wanted = length[0] + length[1] * (int64_t)head.workers + length[2] * (int64_t)head.models;
      if (length[0] >= 0 ? entry.shape[axis] != wanted : entry.shape[axis] < 0) return BALANCER_BAD_ARRAY;
      if ((uint64_t)entry.strides[axis] != size) return BALANCER_BAD_ARRAY;
      word[1 + axis] = entry.shape[axis];
      word[1 + places[i].axes + axis] = (int64_t)size;
      if (entry.shape[axis] && size > bytes / (uint64_t)entry.shape[axis]) return BALANCER_BAD_ARRAY;
      if (entry.shape[axis]) size *= (uint64_t)entry.shape[axis];
    }
    if (entry.offset % 8 || entry.offset > bytes || size > bytes - entry.offset) return BALANCER_BAD_ARRAY;
    word[0] = (int64_t)(intptr_t)((char *)block + entry.offset);
  }
  return BALANCER_FITS;
}
"""

_FUNCTIONS = """
/* Of the library: to be compared with BALANCER_STAMP by who loads it. */
extern const char balancer_stamp[];

/* Each takes words that were bound. */
typedef int64_t balancer_function(const int64_t *fleet_state, const int64_t *options, const int64_t *call);
"""
