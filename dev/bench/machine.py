"""What the figures were measured on, and of what; and what processes take of it."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from balancer.stack.envoyproxy import find_envoy
from balancer.stack.stack import REPOSITORY


def facts() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "cpu": processor(),
        # "<path>  version: <commit>/<version>/..."
        "envoy": _output([find_envoy(), "--version"]).partition("version: ")[2],
        "commit": _output(["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]),
    }


def processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    return found[1] if found else platform.machine()


def _output(command: Sequence[str]) -> str:
    """The first line that a command prints; empty where it cannot be run, as in a checkout without git."""
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
    return printed.partition("\n")[0].strip()


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all below it; pages that they share count for each."""
    return sum(int(process.memory_info().rss) for process in tree(pid))


class CpuMeter:
    """CPU time of named groups of processes, and all below them, since the meter was made."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: list(pids) for name, pids in groups.items()}
        self._before_s = self._now_s()

    def spent_s(self) -> dict[str, float]:
        """Seconds by group, user and system; exact to the scheduler's tick of 10 ms."""
        return {name: spent_s - self._before_s[name] for name, spent_s in self._now_s().items()}

    def _now_s(self) -> dict[str, float]:
        return {
            name: sum(sum(process.cpu_times()[:2]) for pid in pids for process in tree(pid))
            for name, pids in self._groups.items()
        }
