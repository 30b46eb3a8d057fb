"""Which C compiler is used: a machine needs none of its own."""

import importlib.util
import os
import platform
import shlex
import shutil
import sys

_PACKAGES = (sys.executable, "-m", "ziglang", "cc")
_OLDEST_GLIBC = "2.28"
"""That a library for another machine than this one runs with."""


class CompilerError(Exception):
    """There is no C compiler; the message says what to do."""


def compiler(machine: str = "") -> list[str]:
    """The words of `CC`, or else the system's `cc`, or else that of the package ziglang (`pip install balancer[cc]`).

    `machine`, as `platform.machine()` has it: another one than this one is only for the package's.

    Raises:
        CompilerError: there is none.
    """
    if machine and machine != platform.machine():
        if importlib.util.find_spec("ziglang"):
            return [*_PACKAGES, "-target", f"{machine}-linux-gnu.{_OLDEST_GLIBC}"]
        raise CompilerError(f"only a package's C compiler makes code for {machine}: pip install 'balancer[cc]'")
    if given := os.environ.get("CC"):
        return shlex.split(given)
    if shutil.which("cc"):
        return ["cc"]
    if importlib.util.find_spec("ziglang"):
        return list(_PACKAGES)
    raise CompilerError("there is no C compiler: install one, name it in CC, or pip install 'balancer[cc]'")
