"""The folders triton/ and envoy/ must not stand in the way of the packages of those names."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
import torch

parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.Adam([parameter], lr=0.1)
parameter.sum().backward()
optimizer.step()
assert parameter[0] < 1
print("compiler:", getattr(sys.modules.get("triton"), "NAME", None))
"""

FAKE_COMPILER = """
from triton import language
NAME = "fake compiler"
__version__ = "3.0.0"
"""

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed; make setup installs it"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A root as ours, where the test may put a script: the two folders are the real ones."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for folder in ("triton", "envoy"):
        (checkout / folder).symlink_to(ROOT / folder)
    (checkout / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (checkout / "program.py").write_text(PROGRAM)
    (checkout / "test_program.py").write_text(f"def test_program():\n    exec({PROGRAM!r})\n")
    return checkout


def make_fake_compiler(site: Path) -> None:
    """A fake of the compiler: as much as torch imports of it on a CPU."""
    for part in ("language", "backends", "compiler"):
        (site / "triton" / part).mkdir(parents=True)
        (site / "triton" / part / "__init__.py").write_text("")
        (site / "triton" / part / "compiler.py").write_text("HERE = __name__\n")
    (site / "triton" / "language" / "__init__.py").write_text("class dtype: ...\n")
    (site / "triton" / "__init__.py").write_text(FAKE_COMPILER)


@pytest.fixture
def compiler(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The directory that the fake compiler is installed in, or None."""
    if request.param == "no compiler":
        return None
    make_fake_compiler(tmp_path / "site")
    return str(tmp_path / "site")


def run(arguments: list[str], directory: Path, path: str | None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = path
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_torch
@pytest.mark.parametrize(
    ("compiler", "arguments"),
    [
        pytest.param("no compiler", ["-m", "program"], id="python -m"),
        pytest.param("compiler installed", ["program.py"], id="a script in the root"),
        pytest.param("compiler installed", ["-c", PROGRAM], id="a notebook's working directory"),
        pytest.param("no compiler", ["-m", "pytest", "-qs", "-p", "no:cacheprovider", "test_program.py"], id="pytest"),
    ],
    indirect=["compiler"],
)
def test_optimizers_work_from_the_root(checkout: Path, compiler: str | None, arguments: list[str]) -> None:
    expected = "compiler: None" if compiler is None else "compiler: fake compiler"
    assert expected in run(arguments, checkout, compiler)


def test_without_a_compiler_the_import_fails_as_if_the_folder_were_not_there(checkout: Path) -> None:
    program = "try:\n    import triton\nexcept ModuleNotFoundError as error:\n    print(error, error.name)"
    assert run(["-c", program], checkout, None).strip() == "No module named 'triton' triton"


def test_the_compilers_submodules_are_found(checkout: Path, tmp_path: Path) -> None:
    make_fake_compiler(tmp_path / "site")
    program = "import triton.backends.compiler; print(triton.backends.compiler.HERE)"
    assert run(["-c", program], checkout, str(tmp_path / "site")).strip() == "triton.backends.compiler"


def test_envoys_api_is_found_from_the_root(checkout: Path) -> None:
    program = "from envoy.service.ext_proc.v3 import external_processor_pb2 as api; print(api.ProcessingRequest)"
    assert "ProcessingRequest" in run(["-c", program], checkout, None)
