"""The compiled kernel: what fits is loaded, what does not is refused in words, and serving needs no compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from balancer.app import App
from balancer.config.config import Config
from balancer.native import library
from balancer.native.library import Compiled, Library, LibraryError


def test_the_app_decides_by_the_library() -> None:
    assert App(Config(), None).router.fleet.kernel.compiled


def test_without_a_library_it_decides_in_python_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library.Library.__init__, "__defaults__", (tmp_path / "kernel.so",))
    assert not App(Config(), None).router.fleet.kernel.compiled
    (message,) = [record.getMessage() for record in caplog.records if "Python" in record.getMessage()]
    assert "there is no kernel.so" in message
    assert "python -m balancer.native.build" in message


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "stamp", lambda: "another")
    with pytest.raises(LibraryError, match="built from other sources"):
        Library()


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel.so"
    path.write_text("no library")
    with pytest.raises(LibraryError, match="cannot be loaded"):
        Library(path)


def test_each_router_has_slots_of_its_own() -> None:
    loaded = Library()
    one, other = Compiled(loaded), Compiled(loaded)
    assert one._of_call != other._of_call


def test_serving_imports_no_compiler_and_no_training() -> None:
    code = (
        "import sys; from balancer.app import App; from balancer.config.config import Config; "
        "assert App(Config(), None).router.fleet.kernel.compiled; "
        "print([name for name in ('numba', 'llvmlite', 'torch', 'gymnasium') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
