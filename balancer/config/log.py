"""The section `log`, in a file of its own: an agent logs by it, too, and loads no other section."""

from typing import Literal

from balancer.files.schema import Fraction, StrictModel


class LogSection(StrictModel):
    """Structured logs on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """`json`, `console` (for people), or `auto`: console at a terminal."""
    decisions_share: Fraction = 0.0
    """Share of decisions that are logged, a line each."""
