"""The program that decides as an Envoy would."""

from pathlib import Path

import pytest
from support import c_programs

from balancer.native.build import WITHOUT_HOOKS


def compiled(made: Path, *options: str, compiler: str = "cc") -> Path:
    """`settle`, whose clock a test turns."""
    clocks = ("-Wl,--wrap=now_ns", "-Wl,--wrap=about_now_ns")
    source = Path(__file__).with_name("settle.c")
    return c_programs.compiled(made, *options, *clocks, source, *WITHOUT_HOOKS, compiler=compiler)


@pytest.fixture(scope="session")
def settle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It ends at the first error that a sanitizer sees."""
    return compiled(tmp_path_factory.mktemp("c") / "settle", *c_programs.SANITIZED)
