"""What is said where this machine cannot run Triton, and the ports that servers get."""

import ctypes.util
import importlib.util
import socket
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.stack import process
from balancer.stack.process import free_port_range, free_ports
from balancer.stack.tritonserver import TritonServer, TritonUnavailableError, find_triton


def none(*_: object) -> None:
    return None


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake of the wheel: empty files where the real ones lie."""
    parts = tmp_path / "site" / "pytriton" / "tritonserver"
    for file in (
        "bin/tritonserver",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_utils.py",
        "python_backend_stubs/3.11/triton_python_backend_stub",
    ):
        (parts / file).parent.mkdir(parents=True, exist_ok=True)
        (parts / file).touch()
    (tmp_path / "site" / "pytriton" / "__init__.py").touch()
    (tmp_path / "prefix/triton-python/lib/python3.11/site-packages/numpy-1.26.4.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so")
    return parts


def test_the_parts_are_found_and_laid_out(wheel: Path, tmp_path: Path) -> None:
    found = find_triton(tmp_path / "cache")
    assert found.executable == wheel / "bin" / "tritonserver"
    assert sorted(file.name for file in (found.backend_directory / "python").iterdir()) == [
        "libtriton_python.so",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    ]
    assert found.library_path == (tmp_path / "site" / "nvidia_pytriton.libs",)
    assert found.python_directory == tmp_path / "prefix" / "triton-python" / "bin"


def without_wheel(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", none)


def without_server(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheel / "bin" / "tritonserver").unlink()


def without_stub(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheel / "python_backend_stubs" / "3.11" / "triton_python_backend_stub").unlink()


def without_libpython(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", none)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: str(wheel))


def without_old_numpy(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(wheel))


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        (without_wheel, r"not installed; .*pip install --no-deps nvidia-pytriton"),
        (without_server, r"incomplete; .*pip install --no-deps nvidia-pytriton"),
        (without_stub, r"no Python backend stub for Python 3\.11.*make the environment with Python 3\.11"),
        (without_libpython, r"libpython3\.11\.so\.1\.0.*apt-get install libpython3\.11"),
        (without_old_numpy, r"needs NumPy 1 in .*triton-python; make setup"),
    ],
)
def test_what_is_missing_is_named_with_the_remedy(
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remove: Callable[[Path, pytest.MonkeyPatch], None],
    message: str,
) -> None:
    remove(wheel, monkeypatch)
    with pytest.raises(TritonUnavailableError, match=message):
        find_triton(tmp_path / "cache")


def test_all_that_is_missing_is_named_at_once(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_libpython(wheel, monkeypatch)
    without_old_numpy(wheel, monkeypatch)
    without_wheel(wheel, monkeypatch)
    with pytest.raises(TritonUnavailableError) as caught:
        find_triton(tmp_path / "cache")
    no_wheel, no_libpython, no_numpy = str(caught.value).splitlines()
    assert "nvidia-pytriton" in no_wheel
    assert "libpython3.11" in no_libpython
    assert "NumPy 1" in no_numpy


async def test_ending_a_server_that_never_started_is_harmless(tmp_path: Path) -> None:
    server = TritonServer(
        name="w", model_repository=tmp_path, grpc_port=1, http_port=2, metrics_port=3, log_path=tmp_path / "log"
    )
    await server.stop()
    await server.kill()


def test_no_port_is_given_twice_and_each_can_be_bound() -> None:
    found = [*free_ports(20), *free_ports(20), free_port_range(1)]
    assert len(set(found)) == len(found)
    for port in found[:20]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_ports_are_of_the_range_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = 30_000, 30_499
    monkeypatch.setenv(process.ALLOWED, f"{first}-{last}")
    assert all(first <= port <= last for port in free_ports(50))
    assert first <= free_port_range(3) <= last - 2


def test_too_many_ports_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"free ports at 192\.0\.2\.1"):
        free_ports(1, "192.0.2.1")
    monkeypatch.setenv(process.ALLOWED, "30500-30501")
    with pytest.raises(OSError, match="of 3 free ports"):
        free_ports(3)
