"""The program that decides as an Envoy would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from balancer.kernel.compiled.library import PATH
from balancer.native.build import SOURCES, WITHOUT_HOOKS

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def compiled(made: Path, program: str, *options: str, compiler: str = "cc") -> Path:
    """A program of this folder, with all of the module but what Envoy calls. No warning is borne."""
    strict = ("-std=c11", "-Wall", "-Wextra", "-Werror", *options)
    files = ["-I", PATH.parent, "-I", SOURCES, "-o", made, Path(__file__).with_name(program), *WITHOUT_HOOKS]
    # A test turns the clock of `settle`.
    clocks = ("-Wl,--wrap=now_ns", "-Wl,--wrap=about_now_ns") if program == "settle.c" else ()
    subprocess.run([compiler, *strict, *clocks, *files, "-pthread", "-lm", "-ldl"], check=True)
    return made


@pytest.fixture(scope="session")
def settle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It ends at the first mistake that a sanitizer sees."""
    return compiled(tmp_path_factory.mktemp("c") / "settle", "settle.c", "-O1", *SANITIZERS)
