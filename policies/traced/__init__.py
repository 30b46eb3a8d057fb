"""Policies of third parties as programs that compiled code interprets (see README.md of policies)."""

from policies.traced.trace import Traced, examples, traced

__all__ = ["Traced", "examples", "traced"]
