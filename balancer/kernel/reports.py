"""A report taken in: what executed teaches service times, what waits is the queue; for one row of a worker."""

from __future__ import annotations

import numpy as np

from balancer.core.estimators.caches import SETTLED
from balancer.core.estimators.caches import observe as observe_hits
from balancer.core.estimators.queue import (
    executing_of,
    forget_forming,
    recount,
    reported,
    rows_per_request,
    settle,
    take_lying,
)
from balancer.core.estimators.service import batch_s, observe
from balancer.core.kernel.counting import refill
from balancer.core.kernel.state import SERVICE_MEMORY, Books
from policies.base import FloatArray

# Columns of the lines: one of a model each.
MODEL, MAX_BATCH_ROWS, INSTANCES, PENDING, EXECUTING, EXECUTED_ROWS, SUCCEEDED, OTHERS, LINE_COLUMNS = range(9)
# Columns of what was executed since the last report: of which line, rows of a batch, executions, seconds in all.
LINE, ROWS, EXECUTIONS, SECONDS, BATCH_COLUMNS = range(5)

_WARM_UP_EXECUTIONS = 3
_LEAST_S = 1e-9
"""That a batch is expected to take."""


def is_warm(begins: bool, executions: float) -> bool:
    """Whether what was executed since the last report is a measure; `executions` is all of the incarnation.

    The first executions load and tune what all later ones find ready. Nor is a total a measure that they are in, as
    the first one of an incarnation is: among a few hundred fast ones they still make a worker look many times slower.
    """
    return not begins and executions > _WARM_UP_EXECUTIONS


def learn_executed(
    x: Books, e: int, r: int, m: int, line: int, batches: FloatArray, first: int, executed: int, balancers: int
) -> int:
    """Learn from the `batches` of one line, which begin at `first`; returns where the next line's begin.

    With several balancers most ends are not seen here, so what Triton counts is all that is known.
    """
    s, after = x.service, first
    all_rows, all_executions, took_s, expected_s = 0.0, 0.0, 0.0, 0.0
    while after < executed and batches[after, LINE] == line:
        rows, executions = batches[after, ROWS], batches[after, EXECUTIONS]
        all_rows += executions * rows
        all_executions += executions
        took_s += batches[after, SECONDS]
        expected_s += executions * max(batch_s(s, r, m, rows), _LEAST_S)
        after += 1
    if after == first:
        return first
    worked = settle(x.queue, r, m, all_rows, all_executions, took_s, expected_s)
    waited = balancers > 1 or worked == np.inf
    if s.weight[r, m] >= SETTLED:
        took = took_s / expected_s
        observe_hits(x.caches, r, m, all_rows, took if waited else min(worked, took))
    for i in range(first, after):
        rows, executions, seconds = batches[i, ROWS], batches[i, EXECUTIONS], batches[i, SECONDS]
        if not waited:
            seconds = min(seconds, worked * executions * max(batch_s(s, r, m, rows), _LEAST_S))
        observe(s, r, m, rows, executions, seconds, x.desk.settings[e, SERVICE_MEMORY], waited)
    return after


def take_report(
    x: Books,
    e: int,
    r: int,
    lines: FloatArray,
    count: int,
    batches: FloatArray,
    executed: int,
    balancers: int,
    now_s: float,
) -> None:
    """Take in the first `count` of `lines`, and the first `executed` of `batches`, which are in the order of lines."""
    q, s, done = x.queue, x.service, 0
    pending, executing, work_s = 0.0, 0.0, 0.0
    changed = q.balancers[r] != balancers
    q.balancers[r] = balancers
    forget_forming(q, r, lines[:count, MODEL])
    for line in range(count):
        m = int(lines[line, MODEL])
        most, instances = lines[line, MAX_BATCH_ROWS], lines[line, INSTANCES]
        anew = changed or most != s.max_batch_rows[r, m] or instances != s.instances[r, m]
        s.max_batch_rows[r, m], s.instances[r, m] = most, instances
        s.parallel[r, m] = instances if balancers > 1 else 1.0
        after = learn_executed(x, e, r, m, line, batches, done, executed, balancers)
        if anew or after > done:
            recount(q, s, r, m)
        done = after
        pending += lines[line, PENDING]
        executes = executing_of(q, r, m, lines[line, PENDING], lines[line, EXECUTING], lines[line, OTHERS])
        executing += executes
        rows = rows_per_request(lines[line, EXECUTED_ROWS], lines[line, SUCCEEDED])
        work_s += take_lying(q, s, r, m, lines[line, PENDING], executes, rows)
    reported(q, r, pending, executing, work_s, now_s)
    refill(x, e, r, now_s)
