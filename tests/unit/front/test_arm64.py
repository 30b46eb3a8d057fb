"""The kernel made for arm64 decides, counts and learns as the one of this machine, in every bit."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support.settling import SEED, SETTINGS, WORKERS, begin, endpoint, parts, script

from balancer.core.router import Router
from balancer.front.build import SOURCES, WITHOUT_HOOKS
from balancer.front.folder import Folder
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.library import PATH, Compiled, Library, stamp
from policies import BUILTIN

KERNEL = Path(__file__).resolve().parents[3] / "out" / "aarch64" / "kernel.so"
"""Where `make wheel ARCH=aarch64` leaves it."""
COMPILER, EMULATOR, ROOT = "aarch64-linux-gnu-gcc", "qemu-aarch64", Path("/usr/aarch64-linux-gnu")
TOOLS = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user"
"""Debian's packages."""


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `settle`, made for arm64."""
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {TOOLS}")
    if not KERNEL.exists() or stamp().encode() not in KERNEL.read_bytes():
        pytest.skip("needs a kernel of these sources: make wheel ARCH=aarch64")
    made = tmp_path_factory.mktemp("c") / "settle"
    strict = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
    files = ["-I", PATH.parent, "-I", SOURCES, "-o", made, Path(__file__).with_name("settle.c"), *WITHOUT_HOOKS]
    clocks = ("-Wl,--wrap=now_ns", "-Wl,--wrap=about_now_ns")
    subprocess.run([COMPILER, *strict, *clocks, *files, "-pthread", "-lm", "-ldl"], check=True)
    return made


@pytest.mark.parametrize("name", sorted(BUILTIN))
@pytest.mark.parametrize("how", SETTINGS)
def test_it_decides_counts_and_learns_as_here(emulated: Path, tmp_path: Path, name: str, how: str) -> None:
    policy = BUILTIN[name]()
    library, folder = Library(), Folder(tmp_path / "shared")
    shared = SharedRouter(policy, SETTINGS[how], SEED, library, Module(library), folder)
    own = Router(policy, SETTINGS[how], SEED, Compiled(library))
    began_ns = time.monotonic_ns()
    for router in (shared, own):
        begin(router, began_ns * 1e-9)
    names = [f"w{number}" for number in range(WORKERS)]
    shared.tell({n: endpoint(n, True) for n in names}, {n: endpoint(n, False) for n in names})
    shared.serve(True)
    lines = list(script(own, began_ns + 60_000_000))
    asked = "\n".join(line for line, _ in lines)
    program = [EMULATOR, "-L", ROOT, emulated, KERNEL, folder.path]
    done = subprocess.run(program, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [parts(line) for line in done.stdout.splitlines()] == [parts(line) for _, line in lines if line]
    for record in ("queue", "service", "latency", "tokens", "caches"):
        for array, there in vars(getattr(own.fleet, record)).items():
            np.testing.assert_array_equal(getattr(getattr(shared.fleet, record), array), there, err_msg=array)
