"""What is judged beside the trained policies, and is not trained here."""

from __future__ import annotations

from experiments.sealed import rivals
from policies.base import Policy
from policies.learned import Learned

DEFAULTS, TUNED, SHIPPED = rivals.BASELINE, rivals.tuned_name(rivals.BASELINE), "learned, as shipped"


def beside() -> dict[str, Policy]:
    """By name; the tuned one as sealed scenarios have it."""
    known = rivals.rivals(rivals.read_tuned())
    return {SHIPPED: Learned(), DEFAULTS: known[DEFAULTS].policy, TUNED: known[TUNED].policy}
