"""What compiles the module, for which machines, and what a wheel carries."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from balancer.kernel.compiled import c_compiler
from balancer.kernel.compiled.c_compiler import CompilerError
from balancer.kernel.compiled.library import Library
from balancer.native.build import build
from balancer.native.envoy_module import PATH, Module

REPOSITORY = Path(__file__).resolve().parents[3]
AARCH64 = 183
SHARED = 3
"""Of ELF: what machine it is for, and that it is a library."""
DECIDES = """
import pathlib, sys, time
import balancer
from balancer.scheduler.events import WorkerAdded
from balancer.kernel.settings import Settings
from balancer.native.state import Folder
from balancer.native.envoy_module import Module
from balancer.native.router import SharedRouter
from balancer.kernel.compiled.library import Library
from policies import BUILTIN
from policies.base import Request

library, folder = Library(), Folder(pathlib.Path(sys.argv[1]))
router = SharedRouter(BUILTIN["learned"](), Settings(reports_required=False), 1, library, Module(library), folder)
router.observe(WorkerAdded("w0"), time.monotonic())
router.serve(True)
print(balancer.__file__, router.not_deciding_because or "Envoy", router.route(Request("m"), time.monotonic()).worker)
"""


def elf_of(path: Path) -> tuple[int, int]:
    """Type and machine."""
    head = path.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    kind, machine = struct.unpack_from("<HH", head, 16)
    return kind, machine


def test_the_compiler_is_the_named_one_or_the_systems_or_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, object] = {"cc": "/usr/bin/cc", "ziglang": object()}
    monkeypatch.setattr(c_compiler.shutil, "which", found.get)
    monkeypatch.setattr(c_compiler.importlib.util, "find_spec", found.get)
    monkeypatch.setenv("CC", "clang -m64")
    assert c_compiler.compiler() == ["clang", "-m64"]
    monkeypatch.delenv("CC")
    assert c_compiler.compiler() == ["cc"]
    del found["cc"]
    assert c_compiler.compiler() == [sys.executable, "-m", "ziglang", "cc"]
    del found["ziglang"]
    with pytest.raises(
        CompilerError, match=r"no C compiler: install one, name it in CC, or pip install 'balancer\[cc\]'"
    ):
        c_compiler.compiler()


@pytest.fixture
def zig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="the extra balancer[cc] is not installed")
    monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))


@pytest.mark.usefixtures("zig")
def test_the_packages_compiler_makes_a_module_that_fits(tmp_path: Path) -> None:
    path = build(tmp_path / "module.so")
    assert path != PATH
    library = Library()
    module = Module(library, path)
    assert module.call("stamp") == library.stamp.encode()
    assert module.call("bytes") == Module(library).call("bytes")


@pytest.mark.usefixtures("zig")
def test_it_is_made_for_arm64_too(tmp_path: Path) -> None:
    path = build(tmp_path / "module.so", "aarch64")
    assert elf_of(path) == (SHARED, AARCH64)


def test_the_module_compiles_without_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not so where users build it: a newer compiler has warnings that this one has not."""
    monkeypatch.setenv("CC", "cc -Wall -Wextra -Werror")
    assert elf_of(build(tmp_path / "module.so"))[0] == SHARED


def test_a_wheel_has_both_libraries_and_decides_where_nothing_can_be_compiled(tmp_path: Path) -> None:
    source, wheels, installed = tmp_path / "source", tmp_path / "wheels", tmp_path / "installed"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("balancer", "policies", "simulator"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", wheels, source], check=True)
    (wheel,) = wheels.iterdir()
    assert "-py3-none-manylinux_2_" in wheel.name
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", installed, wheel], check=True)
    for path in ("kernel/compiled/kernel.so", "native/module.so"):
        assert elf_of(installed / "balancer" / path)[0] == SHARED
    done = subprocess.run(
        [sys.executable, "-c", DECIDES, tmp_path / "shared"],
        env={"PYTHONPATH": str(installed), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{installed / 'balancer' / '__init__.py'} Envoy w0\n", done.stderr
    up = subprocess.run(
        [sys.executable, "-m", "balancer", "up"],
        env={"PYTHONPATH": str(installed), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (up.returncode, up.stdout) == (1, "")
    (line,) = up.stderr.splitlines()
    assert line.endswith("name a model repository: --models FOLDER")
