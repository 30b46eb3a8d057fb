"""A process of ours beside this one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tools.stack.process import LocalProcess


@dataclass(slots=True)
class Child(LocalProcess):
    """`balancer ARGUMENTS`, in this environment."""

    title: ClassVar[str] = "balancer"
    arguments: Sequence[str]

    @property
    def called(self) -> str:
        """With its command."""
        return f"balancer {self.arguments[0]}"

    async def start(self) -> None:
        """Spawn it."""
        self._check_not_started()
        await self._spawn(sys.executable, "-m", "balancer", *self.arguments, at_our_end="TERM")
