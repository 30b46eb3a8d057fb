"""Requests of several balancers share batches: a report tells of work as a whole, and all can join what waits."""

from __future__ import annotations

import numpy as np
import pytest
from support.estimators import allocate

from balancer.kernel.estimators import queue
from balancer.kernel.estimators.queue import Queue
from balancer.kernel.estimators.service import Service


def service() -> Service:
    s = allocate(Service, 1, 1)
    s.fixed_s[:], s.per_row_s[:], s.max_batch_rows[:] = 0.08, 0.01, 8
    return s


def test_with_several_balancers_it_joins_what_waits_of_all_of_them() -> None:
    q, s = allocate(Queue, 1, 1), service()
    q.balancers[0] = 3
    work_s = queue.take_lying(q, s, 0, 0, pending=2, executing=4, rows=2)
    assert work_s == pytest.approx((0.08 + 4 * 0.01) + (0.08 + 8 * 0.01))
    queue.reported(q, 0, pending=2, executing=4, work_s=work_s, now_s=0.0)
    assert queue.completion_now_s(q, s, (0, 0), 4.0, work_s) == pytest.approx(work_s + 4 * 0.01)
    # One of ours, and one of each of two others: all of the work is counted, once.
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    assert q.forming_rows[0, 0] == 4 + 3
    assert queue.backlog_now_s(q, 0, 0.0, queue.others_left(q, 0, 0.0)) == pytest.approx(work_s + 3 * 0.01)
    # The batch has room for one row more.
    assert queue.completion_now_s(q, s, (0, 0), 1.0, 0.0) == pytest.approx(0.01)
    assert queue.completion_now_s(q, s, (0, 0), 2.0, 0.0) == pytest.approx(0.08 + 2 * 0.01)
    # Half of the work later, half of what waited does so still.
    forming = queue.forming_now(q, 0, (work_s + 3 * 0.01) / 2)
    assert forming == pytest.approx(0.5)
    assert queue.completion_now_s(q, s, (0, 0), 4.0, 0.0, forming) == pytest.approx(4 * 0.01)


def test_what_waits_of_a_model_with_two_versions_is_that_of_both() -> None:
    q, s = allocate(Queue, 1, 1), service()
    q.balancers[0], q.forming_rows[0, 0] = 2, 5
    queue.forget_forming(q, 0, np.zeros(2))
    assert [queue.take_lying(q, s, 0, 0, 2, 0, rows=1) for _ in range(2)] == pytest.approx([0.10, 0.02])
    assert q.forming_rows[0, 0] == 4
