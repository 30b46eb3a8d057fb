"""What the metrics read of others when they are scraped."""

from __future__ import annotations

from typing import Protocol


class ReportStreams(Protocol):
    """What a collector counted; all cumulative but `streams`."""

    streams: int
    """Open now."""
    questions: int
    """Of agents, what is in flight at their workers; answered."""
    silent: int
    """Ended because nothing came."""
    invalid: int
    """Ended by a report out of bounds."""
    refused: int
    """Refused at once: too many, or not allowed to speak for the worker."""
    taken_over: int
    """Ended because the worker opened another."""


class Envoys(Protocol):
    """What is counted of the Envoys that are told of workers."""

    @property
    def connected(self) -> int:
        """Envoys connected now."""

    @property
    def rejections(self) -> int:
        """Updates that Envoys refused (NACK)."""


class Expiring(Protocol):
    """The certificate of a listener."""

    @property
    def expires_s(self) -> float | None:
        """Unix time at which the first of its chain expires; None: unknown."""


class Hashed(Protocol):
    """A config."""

    @property
    def hash(self) -> str:
        """Equal for equal effective configs; costs milliseconds."""


class ConfigInForce(Protocol):
    """The config in force, and when it became that."""

    @property
    def config(self) -> Hashed:
        """Another object where it is another config."""

    @property
    def loaded_at_s(self) -> float:
        """Unix time."""

    @property
    def last_error(self) -> Exception | None:
        """Why the newest file is not in force; None where it is."""
