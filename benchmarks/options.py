"""How the benchmark is to run, as its command line says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.stack import POLICY


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    quick: bool = False
    """A third of the time and of the rounds."""
    out: Path = Path("out/bench")
    policy: str = POLICY
    """Of the parts that compare front ends."""
    rounds: int | None = None
    """Of the same parts; None: their own number."""

    def seconds(self, full_s: float) -> float:
        """How long to measure what takes `full_s` in a full run."""
        return full_s / 3 if self.quick else full_s

    def often(self, full: int) -> int:
        """How often to repeat what is repeated `full` times in a full run."""
        if self.rounds is not None:
            return self.rounds
        return max(2, full // 3) if self.quick else full
