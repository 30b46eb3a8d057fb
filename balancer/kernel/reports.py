"""The intake of a worker's report, the whole of it: its order, what it teaches of service times, the queue, its age.

The fleet and the simulator's engine ask `order_of`, write what the report says into lines and batches, and call
`take_report`.
"""

import numpy as np

from balancer.kernel.counting import refill
from balancer.kernel.estimators.caches import SETTLED, lose_all
from balancer.kernel.estimators.caches import observe as observe_hits
from balancer.kernel.estimators.prefixes import lose_prefixes, take_memory
from balancer.kernel.estimators.queue import (
    executing_of,
    forget_forming,
    observe_spread,
    recount,
    reported,
    rows_per_request,
    settle,
    take_lying,
)
from balancer.kernel.estimators.service import batch_s, observe
from balancer.kernel.limits_and_draw import is_fresh, received
from balancer.kernel.state import KEY_MEMORY, SERVICE_MEMORY, FleetState
from policies.base import FloatArray

# Columns of the lines: one of a model each.
(
    MODEL, MAX_BATCH_ROWS, INSTANCES, PENDING, EXECUTING, TOTAL_EXECUTIONS, EXECUTED_ROWS, SUCCEEDED, PEER_IN_FLIGHT,
    MEMORY_TOKENS, HELD_TOKENS, LINE_COLUMNS,
) = range(12)  # fmt: skip
# Columns of what was executed since the last report: of which line, rows of a batch, executions, seconds in all.
LINE, ROWS, EXECUTIONS, SECONDS, BATCH_COLUMNS = range(5)

LATE, NEXT, BEGINS = range(-1, 2)
"""A report's order: it repeats or precedes the last one; it continues the last one's incarnation; it begins another."""

_WARM_UP_EXECUTIONS = 3
_LEAST_S = 1e-9


def order_of(report: tuple[int, int, int], last: tuple[int, int, int]) -> int:
    """`LATE`, `NEXT` or `BEGINS`: how a report follows the last one of the worker that was taken in.

    Both are stream, incarnation, number. The stream comes first: no number that an older stream carried can shut out
    the one that is the worker now.
    """
    if report <= last:
        return LATE
    return NEXT if report[1] == last[1] else BEGINS


def _learn_executed(
    x: FleetState, e: int, r: int, m: int, batches: FloatArray, first: int, end: int, balancers: int
) -> None:
    """Learn from the batches of one line, `first` to `end`.

    With several balancers most ends are not seen here, so what Triton counts is all that is known.
    """
    s = x.service
    all_rows, all_executions, took_s, expected_s = 0.0, 0.0, 0.0, 0.0
    for i in range(first, end):
        rows, executions = batches[i, ROWS], batches[i, EXECUTIONS]
        all_rows += executions * rows
        all_executions += executions
        took_s += batches[i, SECONDS]
        expected_s += executions * max(batch_s(s, r, m, rows), _LEAST_S)
    worked = settle(x.queue, r, m, all_rows, all_executions, took_s, expected_s)
    waited = balancers > 1 or worked == np.inf
    if s.weight[r, m] >= SETTLED:
        took = took_s / expected_s
        observe_hits(x.caches, r, m, all_rows, took if waited else min(worked, took))
        if not waited:
            observe_spread(x.queue, r, all_executions, min(worked, took))
    for i in range(first, end):
        rows, executions, seconds = batches[i, ROWS], batches[i, EXECUTIONS], batches[i, SECONDS]
        if not waited:
            seconds = min(seconds, worked * executions * max(batch_s(s, r, m, rows), _LEAST_S))
        observe(s, r, m, rows, executions, seconds, x.decision.settings[e, SERVICE_MEMORY], waited)


def take_report(
    x: FleetState,
    e: int,
    r: int,
    begins: bool,
    lines: FloatArray,
    count: int,
    batches: FloatArray,
    executed: int,
    balancers: int,
    now_s: float,
) -> bool:
    """Take in a report that is not late, of the worker in row `r`; returns whether its age made it ineligible before.

    Args:
        x: The fleet's state.
        e: Row of the fleet.
        r: Row of the worker.
        begins: It begins an incarnation: caches are empty, and nothing is learned of what was executed.
        lines: The first `count` are of the report, in the columns above.
        count: See `lines`.
        batches: The first `executed` are of the report, in the order of lines.
        executed: See `batches`.
        balancers: To which the worker reports.
        now_s: The balancer's clock.
    """
    q, s, done = x.queue, x.service, 0
    pending, executing, work_s = 0.0, 0.0, 0.0
    if begins:
        lose_all(x.caches, r, x.decision.settings[e, KEY_MEMORY])
        lose_prefixes(x.prefixes, r, now_s)
    changed = q.balancers[r] != balancers
    q.balancers[r] = balancers
    forget_forming(q, r, lines[:count, MODEL])
    for line in range(count):
        m = int(lines[line, MODEL])
        most, instances = lines[line, MAX_BATCH_ROWS], lines[line, INSTANCES]
        take_memory(x.prefixes, r, m, lines[line, MEMORY_TOKENS], lines[line, HELD_TOKENS])
        anew = changed or most != s.max_batch_rows[r, m] or instances != s.instances[r, m]
        s.max_batch_rows[r, m], s.instances[r, m] = most, instances
        s.parallel[r, m] = instances if balancers > 1 else 1.0
        first = done
        while done < executed and batches[done, LINE] == line:
            done += 1
        # The first executions load and tune what all later ones find ready. Nor is a total a measure that they are in,
        # as the first one of an incarnation is: among a few hundred fast ones they still make a worker look many times
        # slower.
        learns = done > first and not begins and lines[line, TOTAL_EXECUTIONS] > _WARM_UP_EXECUTIONS
        if learns:
            _learn_executed(x, e, r, m, batches, first, done, balancers)
        if anew or learns:
            recount(q, s, r, m)
        pending += lines[line, PENDING]
        executes = executing_of(q, r, m, lines[line, PENDING], lines[line, EXECUTING], lines[line, PEER_IN_FLIGHT])
        executing += executes
        rows = rows_per_request(lines[line, EXECUTED_ROWS], lines[line, SUCCEEDED])
        work_s += take_lying(q, s, r, m, lines[line, PENDING], executes, rows)
    reported(q, r, pending, executing, work_s, now_s)
    refill(x, e, r, now_s)
    was_stale = not is_fresh(x, e, r, now_s)
    received(x, r, now_s)
    return was_stale
