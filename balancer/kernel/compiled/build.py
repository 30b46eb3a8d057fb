"""Compile the kernel to the library that production loads: `python -m balancer.kernel.compiled.build`.

Needs numba and a C compiler.
"""

import functools
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import cpu_count
from pathlib import Path
from typing import Any

import click
import numpy as np
from llvmlite import binding
from numba.core import types

from balancer.kernel.block import ordinary_memory
from balancer.kernel.compiled.c_compiler import compiler
from balancer.kernel.compiled.call import FLEET_STATE, new_call
from balancer.kernel.compiled.exported_functions import entries
from balancer.kernel.compiled.header import header_of
from balancer.kernel.compiled.library import PATH, STAMP, stamp
from balancer.kernel.compiled.numba_functions import exported
from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.fleet_state import FleetBlock
from balancer.kernel.state import Options


@dataclass(frozen=True)
class Machine:
    name: str
    """As `platform.machine()` has it."""
    cpu: str
    """What any machine of the name has that serves today."""
    wide: str = ""
    """What most have beside: entries are compiled for these as well, without fused operations, so to the same bits."""

    @property
    def triple(self) -> str:
        return f"{self.name}-unknown-linux-gnu"


MACHINES = {each.name: each for each in (Machine("x86_64", "x86-64-v2", "+avx2"), Machine("aarch64", "generic"))}

_MOST_PROCESSES = 8
"""Each takes half a gigabyte, and compiles for itself what several entries call."""

_RESHAPE = """
#include <stdint.h>
/* numba's, which is in its Python module; here, for arrays without gaps and of one axis. */
int numba_attempt_nocopy_reshape(intptr_t axes, const intptr_t *dims, const intptr_t *strides, intptr_t new_axes,
                                 const intptr_t *new_dims, intptr_t *new_strides, intptr_t itemsize, int is_f_order) {
  if (axes != 1 || strides[0] != itemsize || is_f_order) return 0;
  for (intptr_t axis = new_axes - 1, step = itemsize; axis >= 0; step *= new_dims[axis--]) new_strides[axis] = step;
  return 1;
}
"""

_CHOICE = """
#include <cpuid.h>
/* Whether processor and system have AVX2 (Intel 64 and IA-32 Architectures Software Developer's Manual, 14.7.1). */
static int wide;
__attribute__((constructor)) static void look_at_processor(void) {
  unsigned a, b, c, d, enabled;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX)) return;
  __asm__("xgetbv" : "=a"(enabled), "=d"(d) : "c"(0));
  if ((enabled & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d)) wide = !!(b & bit_AVX2);
}
#define ENTRY(name) \\
  extern int64_t narrow_##name(const void *, const void *, const void *); \\
  extern int64_t wide_##name(const void *, const void *, const void *); \\
  int64_t balancer_##name(const void *fleet_state, const void *options, const void *call) { \\
    return wide ? wide_##name(fleet_state, options, call) : narrow_##name(fleet_state, options, call); \\
  }
"""


def build(path: Path = PATH, machine: Machine | None = None) -> int:
    """Write the library, and its header beside it; returns how many entries it has.

    numba compiles for this machine, up to LLVM's code, in which nothing is of one machine but its name; `machine` is
    what LLVM then makes machine code for. By default this one.
    """
    machine = machine or MACHINES.get(platform.machine(), Machine(platform.machine(), "generic"))
    path.parent.mkdir(parents=True, exist_ok=True)
    says = {name: function.__doc__ for name, function in _entries().items()}
    processes = ProcessPoolExecutor(min(cpu_count(), _MOST_PROCESSES))
    with tempfile.TemporaryDirectory() as folder, processes:
        objects = []
        for codes in processes.map(functools.partial(_objects, machine=machine), says):
            for symbol, code in codes.items():
                objects.append(Path(folder, f"{symbol}.o"))
                objects[-1].write_bytes(code)
        objects.append(_stamped(Path(folder), says, machine))
        _link(objects, path, machine)
    path.with_suffix(".h").write_text(header_of(says, stamp(), _a_fleet()), encoding="utf-8")
    return len(says)


@functools.cache
def _entries() -> dict[str, Any]:
    return dict(entries())


def _a_fleet() -> FleetBlock:
    block = FleetBlock(ordinary_memory, stamp())
    block.add(models=1)
    return block


def _objects(name: str, machine: Machine) -> dict[str, bytes]:
    """Machine code that does without Python, by its symbol: `int64 symbol(fleet_state*, options*, call*)`."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    _, call, _ = new_call()
    arguments = [Native(_a_fleet(), FLEET_STATE), Native(Options(np.zeros(1))), Native(call)]
    signature = types.int64(*(argument.numba_type for argument in arguments))
    (compiled,) = exported(signature)(_entries()[name]).overloads.values()
    inner, code = compiled.fndesc.llvm_func_name, compiled.library.get_llvm_str()
    features = {f"narrow_{name}": "", f"wide_{name}": machine.wide} if machine.wide else {f"balancer_{name}": ""}
    return {symbol: _object(symbol, inner, code, machine, beside) for symbol, beside in features.items()}


def _object(symbol: str, inner: str, code: str, machine: Machine, features: str) -> bytes:
    """Of one symbol; `inner`: numba's function in `code`."""
    visibility = "default" if symbol.startswith("balancer_") else "hidden"
    # numba's convention: status f(result*, exception**, arguments). Nothing in the kernel raises.
    code += f"""
define {visibility} i64 @{symbol}(ptr %x, ptr %options, ptr %call) {{
  %result = alloca i64
  %exception = alloca ptr
  %status = call i32 @{inner}(ptr %result, ptr %exception, ptr %x, ptr %options, ptr %call)
  %value = load i64, ptr %result
  ret i64 %value
}}
"""
    target = binding.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )
    module = binding.parse_assembly(code)
    module.triple, module.data_layout = machine.triple, str(target.target_data)
    # Helpers of numba's come with each object, alike: they are each one's own.
    for helper in module.functions:
        if not helper.is_declaration and helper.name != symbol:
            helper.linkage = "internal"
    module.verify()
    return bytes(target.emit_object(module))


def _stamped(folder: Path, names: Iterable[str], machine: Machine) -> Path:
    """What tells the library's sources, and the layout of the fleet's state; what compiled code calls of numba's; and
    the entries, where they are chosen by the processor."""
    source = folder / "stamp.c"
    chosen = "".join(f"ENTRY({name})\n" for name in names) if machine.wide else ""
    text = f'const char {STAMP}[] = "{stamp()}";\n{_RESHAPE}{_CHOICE + chosen if chosen else ""}'
    source.write_text(text, encoding="utf-8")
    made = folder / "stamp.o"
    subprocess.run([*compiler(machine.name), "-c", "-O2", "-fPIC", "-o", made, source], check=True)
    return made


def _link(objects: Sequence[Path], path: Path, machine: Machine) -> None:
    draft = path.with_suffix(".new")
    options = ["-Wl,--no-undefined", "-Wl,--strip-all"]
    subprocess.run([*compiler(machine.name), "-shared", "-o", draft, *objects, "-lm", *options], check=True)
    draft.replace(path)


@click.command(help="Compile the kernel: by default for this machine, and to where it is loaded from.")
@click.option("--target", type=click.Choice(list(MACHINES)), help="Another machine; needs the extra balancer[cc].")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=PATH, help="The library.")
def main(target: str | None, out: Path) -> None:
    """Run the command."""
    click.echo("compiling the kernel, some minutes ...", err=True)
    count = build(out, MACHINES[target] if target else None)
    click.echo(f"compiled {count} functions of the kernel: {out}", err=True)


if __name__ == "__main__":
    main(prog_name="python -m balancer.kernel.compiled.build")
