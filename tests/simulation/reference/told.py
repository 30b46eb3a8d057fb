"""What a simulation tells beside its result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decided:
    """One decision."""

    request: int
    at_s: float
    balancer: int
    worker: int
    fallbacks: tuple[int, ...]
    propensity: float


@dataclass(frozen=True)
class Executed:
    """One execution that ended."""

    worker: int
    number: int
    """How many the worker had started before."""
    model: int
    started_s: float
    ended_s: float
    requests: tuple[int, ...]
