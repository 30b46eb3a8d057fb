"""Compile the module that Envoy loads: `python -m balancer.front.build [PATH]`.

Needs a C compiler (see `balancer.native.compiler`), and `kernel.h`, which `python -m balancer.native.build` writes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from balancer.front import header
from balancer.front.module import PATH
from balancer.native import constants
from balancer.native.compiler import compiler
from balancer.native.library import PATH as KERNEL

SOURCES = KERNEL.parent / "module"
_HOOKS = {"cluster.c", "filter.c", "unused.c"}
WITHOUT_HOOKS = tuple(sorted(path for path in SOURCES.glob("*.c") if path.name not in _HOOKS))
"""All but what Envoy calls: for programs that drive it in Envoy's place."""
FLAGS = (
    *("-std=c11", "-O3", "-flto", "-g1", "-Wall", "-Wextra", "-Werror"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", "-pthread"),
)


def build(path: Path = PATH, *further: str) -> Path:
    """Write the module; `further`: arguments of the compiler.

    Raises:
        CalledProcessError: it does not compile.
        CompilerError: there is nothing to compile it with.
    """
    constants.write()
    header.write()
    draft = path.with_suffix(".new")
    sources = sorted(SOURCES.glob("*.c"))
    files = ["-I", str(KERNEL.parent), "-o", str(draft), *map(str, sources)]
    command = [*compiler(), *FLAGS, *further, *files, "-lm", "-ldl"]
    subprocess.run(command, check=True)
    draft.replace(path)
    return path


if __name__ == "__main__":
    print(f"compiled the module for Envoy: {build(Path(sys.argv[1]) if sys.argv[1:] else PATH)}", file=sys.stderr)
