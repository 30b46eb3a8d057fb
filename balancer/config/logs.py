"""Sections `log` and `decision_log`: what is told to people, and what is kept for replay. Fields are documented by the
text under them, as in `sections`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ByteSize, Field

from balancer.files.schema import Fraction, StrictModel


class LogSection(StrictModel):
    """Structured logs on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """`json`: one object a line; `console`: for people; `auto`: console where stderr is a terminal."""
    decisions_share: Fraction = 0.0
    """The share of decisions that are told here, a line each, for people: 0 is none, 1 all."""


class DecisionLogSection(StrictModel):
    """Decisions on file, exactly: what each rested on, what was decided, how it ended; for `balancer replay`."""

    folder: str | None = None
    """Where each process writes files of its own (gzipped JSON lines), relative to the folder of the config file;
    null: nothing is recorded."""
    share: Fraction = 1.0
    """The share of decisions that are recorded: 0 is none, 1 all."""
    max_file_bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(64 * 2**20)
    """Size, in bytes or as text such as `64MiB`, at which a process begins its next file."""
    max_files: int = Field(default=16, ge=1)
    """Files that each process keeps; for one more, the oldest is deleted."""
