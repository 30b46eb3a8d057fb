"""What executes for longer than expected is expected to take as much longer as it is late, within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from support.estimators import allocate

from balancer.kernel.estimators import queue
from balancer.kernel.estimators.queue import Queue
from balancer.kernel.estimators.service import Service


def backlog_now_s(q: Queue, now_s: float) -> np.ndarray:
    return queue.backlog_now_s(q, ..., now_s, None)


def make_service(workers: int = 1) -> Service:
    """Batches of one row that take 90 ms."""
    s = allocate(Service, workers, 1)
    s.fixed_s[:], s.per_row_s[:] = 0.08, 0.01
    return s


def test_what_executes_is_worked_off_with_time_and_counts_again_as_far_as_it_is_overdue() -> None:
    """Services of 90 ms: one executes, two wait."""
    q, s = allocate(Queue, 1, 1), make_service()
    for _ in range(3):
        queue.sent(q, s, 0, 0, 1, now_s=0.0)
    for now_s, left_s in ((0.0, 0.09), (0.05, 0.04), (0.09, 0.0), (0.1, 0.01), (0.5, 0.41)):
        assert backlog_now_s(q, now_s)[0] == pytest.approx(0.18 + left_s)


def test_an_execution_that_is_overdue_for_long_counts_ever_less_since_its_end_may_not_have_been_seen() -> None:
    q, s = allocate(Queue, 1, 1), make_service()
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    for now_s, left_s in ((9.5 * 0.09, 8.5 * 0.09), (15 * 0.09, 5 * 0.09), (20 * 0.09, 0.0), (300.0, 0.0)):
        assert backlog_now_s(q, now_s)[0] == pytest.approx(left_s)


def test_nothing_is_overdue_where_nothing_executes() -> None:
    q, s = allocate(Queue, 2, 1), make_service(2)
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    queue.ended(q, s, 0, 0, 1, now_s=0.1)
    q.balancers[1] = 2
    queue.sent(q, s, 1, 0, 1, now_s=0.0)
    assert backlog_now_s(q, 0.5).tolist() == pytest.approx([0.0, 0.09])
