"""Which C compiler is used: a machine needs none of its own."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys


class CompilerError(Exception):
    """There is no C compiler; the message says what to do."""


def compiler() -> list[str]:
    """The words of `CC`, or else the system's `cc`, or else that of the package ziglang (`pip install balancer[cc]`).

    Raises:
        CompilerError: there is none.
    """
    if given := os.environ.get("CC"):
        return shlex.split(given)
    if shutil.which("cc"):
        return ["cc"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CompilerError("there is no C compiler: install one, name it in CC, or pip install 'balancer[cc]'")
