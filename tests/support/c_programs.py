"""Programs in C over the sources of Envoy's module. No warning is borne."""

import subprocess
from pathlib import Path

from balancer.kernel.compiled.library import PATH
from balancer.native import header

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""Ends at the first error that a sanitizer sees."""


def compiled(made: Path, *arguments: str | Path, compiler: str = "cc") -> Path:
    """Compile options and sources into the program `made`."""
    header.write()
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", PATH.parent, "-I", header.SOURCES, "-o", made]
    subprocess.run([*command, *arguments, "-pthread", "-lm", "-ldl"], check=True)
    return made
