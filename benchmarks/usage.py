"""CPU time and memory of processes, with all that they started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psutil


def tree(pid: int) -> list[psutil.Process]:
    """A process and what it started."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of the processes and all below them, user and system; exact to the scheduler's tick of 10 ms."""
    return sum(sum(process.cpu_times()[:2]) for pid in pids for process in tree(pid))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all below it; pages that they share count for each."""
    return sum(int(process.memory_info().rss) for process in tree(pid))


class CpuMeter:
    """CPU time of named groups of processes since the meter was made."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: list(pids) for name, pids in groups.items()}
        self._before_s = self._now_s()

    def spent_s(self) -> dict[str, float]:
        """Seconds by group."""
        return {name: spent_s - self._before_s[name] for name, spent_s in self._now_s().items()}

    def _now_s(self) -> dict[str, float]:
        return {name: cpu_s(pids) for name, pids in self._groups.items()}
