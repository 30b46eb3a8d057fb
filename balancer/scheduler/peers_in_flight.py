"""How many requests other balancers have in flight at each worker; the worker's agent passes the counts on."""

import math
from collections import Counter
from collections.abc import Iterator

from balancer.scheduler.events import Report

ANSWER_WITHIN_S = 0.005
"""What a report waits for balancers' answers, at most."""


def peers_by_model(report: Report) -> Iterator[float]:
    """Of each of the report's models, the requests that other balancers have in flight there; not a number: not known.

    The counts are by model. Where several versions of one are ready, they could be of any.
    """
    counts = None if report.peers_in_flight is None else dict(report.peers_in_flight)
    ready = Counter(model.model for model in report.models if model.ready)
    for model in report.models:
        known = counts is not None and model.ready and ready[model.model] == 1
        yield counts.get(model.model, 0) if known and counts is not None else math.nan
