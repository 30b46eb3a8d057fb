"""What pyproject.toml cannot say: a wheel that carries compiled libraries is one for a platform."""

import os
import platform
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
MACHINE = os.environ.get("WHEEL_ARCH") or platform.machine()
"""That the libraries are for; those of another machine than this one are in out/MACHINE."""
PLACES = (Path("balancer", "kernel", "compiled", "kernel.so"), Path("balancer", "native", "module.so"))
LIBRARIES = [HERE / path if platform.machine() == MACHINE else HERE / "out" / MACHINE / path.name for path in PLACES]


def platform_tag() -> str:
    """For machines whose C library has all that the libraries need (PEP 600)."""
    found = {version for path in LIBRARIES for version in re.findall(rb"GLIBC_(\d+)\.(\d+)", path.read_bytes())}
    major, minor = max((int(major), int(minor)) for major, minor in found)
    return f"manylinux_{major}_{minor}_{MACHINE}"


class Sources(build_py):
    """With the libraries of the machine that the wheel is for."""

    def run(self) -> None:
        """See distutils."""
        super().run()
        for path, place in zip(LIBRARIES, PLACES, strict=True):
            if path.exists() and not self.editable_mode:
                shutil.copy(path, Path(self.build_lib, place))


class Wheel(bdist_wheel):
    """For any Python 3: the libraries do without it. Without libraries, for any platform."""

    def finalize_options(self) -> None:
        """See distutils."""
        super().finalize_options()
        self.root_is_pure = not all(path.exists() for path in LIBRARIES)

    def get_tag(self) -> tuple[str, str, str]:
        """See PEP 427."""
        return ("py3", "none", "any" if self.root_is_pure else platform_tag())


setup(cmdclass={"bdist_wheel": Wheel, "build_py": Sources})
