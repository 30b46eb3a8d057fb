"""Compile the module that Envoy loads: `python -m balancer.native.build`.

Needs a C compiler (see `balancer.kernel.compiled.c_compiler`), and `kernel.h`, which is written where the kernel is
compiled.
"""

import subprocess
from pathlib import Path

import click

from balancer.kernel.compiled.c_compiler import compiler
from balancer.kernel.compiled.library import PATH as KERNEL
from balancer.native import header
from balancer.native.envoy_module import PATH
from balancer.native.header import SOURCES

_HOOKS = {"cluster.c", "filter.c", "unused.c", "version.c"}
WITHOUT_HOOKS = tuple(sorted(path for path in SOURCES.glob("*.c") if path.name not in _HOOKS))
"""All but what Envoy calls: for programs that drive it in Envoy's place."""
FLAGS = (
    *("-std=c11", "-O3", "-flto", "-g1"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", "-pthread"),
)


def build(path: Path = PATH, machine: str = "") -> Path:
    """Write the module; `machine`: another one than this, as `platform.machine()` has it.

    Raises:
        CalledProcessError: it does not compile.
        CompilerError: there is nothing to compile it with.
    """
    header.write()
    draft = path.with_suffix(".new")
    sources = sorted(SOURCES.glob("*.c"))
    files = ["-I", str(KERNEL.parent), "-o", str(draft), *map(str, sources)]
    command = [*compiler(machine), *FLAGS, *files, "-lm", "-ldl"]
    subprocess.run(command, check=True)
    draft.replace(path)
    return path


@click.command(help="Compile the module for Envoy: by default for this machine, and to where it is loaded from.")
@click.option("--target", default="", help="Another machine, such as aarch64; needs the extra balancer[cc].")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=PATH, help="The library.")
def main(target: str, out: Path) -> None:
    """Run the command."""
    out.parent.mkdir(parents=True, exist_ok=True)
    click.echo(f"compiled the module for Envoy: {build(out, target)}", err=True)


if __name__ == "__main__":
    main(prog_name="python -m balancer.native.build")
