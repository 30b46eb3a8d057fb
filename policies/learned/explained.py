"""What moved a pick, in words and seconds: the learned policy without one of its inputs, held against itself."""

from __future__ import annotations

import numpy as np

from policies.base import BoolArray, FloatArray
from policies.learned.features import FEATURES, TERMS, Inputs
from policies.learned.network import Network

EXPECTED = "expected completion"
"""The heuristic part of the score, and what the network makes of the same number."""

GROUPS: dict[str, tuple[str, ...]] = {
    EXPECTED: ("excess",),
    "queue": ("backlog", "pending", "reported_pending"),
    "others' requests": ("others",),
    "service time": ("slowness", "service"),
    "batching": ("marginal",),
    "delay of others": ("externality", "crossing"),
    "warm cache": ("saving", "cached"),
    "recent latency": ("latency",),
    "age of report": ("staleness",),
    "errors": ("error_rate",),
    "deadline": ("urgency",),
}
"""Inputs (features and terms of these names) by what people call them. Those that are the same for every worker (rows,
workers, load, mean_pending) change what the others do, and move no pick by themselves."""


def contributions(network: Network, given: Inputs, eligible: BoolArray) -> dict[str, FloatArray]:
    """What each group adds to each worker's score, `(..., n)`, in seconds of expected completion, more being better.

    It is the score less the score without the group: its inputs at their means over the eligible workers (occlusion;
    Zeiler and Fergus 2014). What groups do together is counted with each of them, so the numbers need not add up.
    """
    term = network.term(given.features, given.terms, eligible)
    found = {}
    for name, inputs in GROUPS.items():
        features = _without(given.features, [f.name in inputs for f in FEATURES], eligible)
        terms = _without(given.terms, [t.name in inputs for t in TERMS], eligible)
        added = term - network.term(features, terms, eligible)
        if name == EXPECTED:
            added = added - given.relative_cost
        found[name] = added * given.best_s
    return found


def _without(columns: FloatArray, which: list[bool], eligible: BoolArray) -> FloatArray:
    """The columns `(..., n, f)`, some of them at their means over the eligible workers."""
    count = np.maximum(np.count_nonzero(eligible, axis=-1), 1)[..., None, None]
    means = np.add.reduce(columns, axis=-2, keepdims=True, where=eligible[..., None]) / count
    return np.where(which, means, columns)
