"""How well the replicas followed the load."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from experiments.autoscaling.closed_loop import Run
from policies.base import FloatArray
from simulator.result import Status

FULL = 0.9
"""Of what the ready workers can serve: above it there are too few."""
_WINDOW_S = 60.0


class Figures(NamedTuple):
    """Of one run."""

    too_few: float
    """Share of the time in which the offered load was above `FULL` of what the ready workers can serve."""
    too_many: float
    """Share of the time in which two replicas fewer would have sufficed, with more than the least there."""
    mean_replicas: float
    mean_needed: float
    """The fewest that would have sufficed."""
    largest: int
    changes: int
    p99_s: float
    late: float
    """Share of the requests that missed their deadlines, or failed."""


def offered_per_s(run: Run) -> FloatArray:
    """Requests a second at each look, over the minute around it."""
    arrival_s = run.result.arrival_s[0]
    ends = [np.searchsorted(arrival_s, run.look_s + side * _WINDOW_S / 2) for side in (-1, 1)]
    counted_s = np.minimum(run.look_s + _WINDOW_S / 2, arrival_s[-1]) - np.maximum(run.look_s - _WINDOW_S / 2, 0)
    offered: FloatArray = (ends[1] - ends[0]) / counted_s
    return offered


def needed(run: Run, one_per_s: float, least: int) -> FloatArray:
    """The fewest workers that suffice, at each look."""
    fewest: FloatArray = np.maximum(np.ceil(offered_per_s(run) / (FULL * one_per_s)), least)
    return fewest


def figures(run: Run, one_per_s: float, least: int) -> Figures:
    """Of a run whose workers can serve so much each, of which there are so many at least."""
    fewest, result = needed(run, one_per_s, least), run.result
    latency_s, ok = result.latency_s[0], result.status[0] == Status.OK
    return Figures(
        too_few=float((run.ready < fewest).mean()),
        too_many=float((run.replicas >= fewest + 2).mean()),
        mean_replicas=float(run.replicas.mean()),
        mean_needed=float(fewest.mean()),
        largest=int(run.replicas.max()),
        changes=int((np.diff(run.replicas) != 0).sum()),
        p99_s=float(np.quantile(latency_s[ok], 0.99)),
        late=float((~ok | (latency_s > result.deadline_s[0])).mean()),
    )
