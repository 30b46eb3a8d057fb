"""The program that decides as an Envoy would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from balancer.front.build import SOURCES, WITHOUT_HOOKS
from balancer.native.library import PATH

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


@pytest.fixture(scope="session")
def settle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It ends at the first mistake that a sanitizer sees."""
    made = tmp_path_factory.mktemp("c") / "settle"
    strict = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", *SANITIZERS)
    files = ["-I", PATH.parent, "-I", SOURCES, "-o", made, Path(__file__).with_name("settle.c"), *WITHOUT_HOOKS]
    clocks = ("-Wl,--wrap=now_ns", "-Wl,--wrap=about_now_ns")
    subprocess.run(["cc", *strict, *clocks, *files, "-pthread", "-lm", "-ldl"], check=True)
    return made


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that a balancer shares with Envoys."""
    return tmp_path / "shared"


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, computing takes none."""
    for clock in ("thread_time", "perf_counter"):
        monkeypatch.setattr(f"balancer.front.tables.time.{clock}", lambda: 0.0)
