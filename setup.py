"""What pyproject.toml cannot say: a wheel that carries compiled libraries is one for a platform."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

LIBRARIES = [Path(__file__).parent / "balancer" / "native" / name for name in ("kernel.so", "module.so")]


def platform_tag() -> str:
    """For machines whose C library has all that the libraries need (PEP 600)."""
    found = {version for path in LIBRARIES for version in re.findall(rb"GLIBC_(\d+)\.(\d+)", path.read_bytes())}
    major, minor = max((int(major), int(minor)) for major, minor in found)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


class Wheel(bdist_wheel):
    """For any Python 3: the libraries do without it. Without libraries, for any platform."""

    def finalize_options(self) -> None:
        """See distutils."""
        super().finalize_options()
        self.root_is_pure = not all(path.exists() for path in LIBRARIES)

    def get_tag(self) -> tuple[str, str, str]:
        """See PEP 427."""
        return ("py3", "none", "any" if self.root_is_pure else platform_tag())


setup(cmdclass={"bdist_wheel": Wheel})
