"""Seconds of the device: charged to the model of each own request that ends, and expected of one that comes."""

from __future__ import annotations

import numpy as np
import pytest
from support.estimators import allocate

from balancer.kernel.estimators import queue
from balancer.kernel.estimators.queue import Queue
from balancer.kernel.estimators.service import Service


def test_the_time_from_end_to_end_is_charged_to_what_ended() -> None:
    q, s = allocate(Queue, 1, 2), allocate(Service, 1, 2)
    for m in (0, 1, 0):
        queue.sent(q, s, 0, m, 2, now_s=1.0)
    for m, now_s in ((0, 1.25), (1, 2.25), (0, 2.5)):
        queue.ended(q, s, 0, m, 2, now_s)
    queue.sent(q, s, 0, 0, 2, now_s=7.5)  # Nobody is charged for the time in which the worker was idle.
    queue.ended(q, s, 0, 0, 2, now_s=8.0)
    assert q.charged_s[0].tolist() == [1.0, 1.0]
    # Of three executions that Triton counts 1.5 seconds each and that were expected to take 0.5.
    assert queue.settle(q, 0, 0, rows=6, executions=3, took_s=4.5, expected_s=1.5) == pytest.approx(1.0 / 1.5)
    assert q.charged_s[0].tolist() == [0.0, 1.0]
    assert q.ended_rows[0].tolist() == [0.0, 2.0]


def test_what_others_executed_took_as_much_as_ours() -> None:
    q, s = allocate(Queue, 1, 1), allocate(Service, 1, 1)
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    queue.ended(q, s, 0, 0, 1, now_s=0.25)
    assert queue.settle(q, 0, 0, rows=4, executions=4, took_s=4.0, expected_s=1.0) == pytest.approx(1.0)
    assert queue.settle(q, 0, 0, rows=4, executions=4, took_s=4.0, expected_s=1.0) == np.inf  # none of them ours


def test_what_is_left_of_the_charges_is_at_most_one_batch() -> None:
    q, s = allocate(Queue, 1, 1), allocate(Service, 1, 1)
    queue.sent(q, s, 0, 0, 2, now_s=0.0)
    queue.ended(q, s, 0, 0, 2, now_s=9.0)
    assert queue.settle(q, 0, 0, rows=2, executions=2, took_s=1.0, expected_s=1.0) == pytest.approx(9.0)
    assert q.charged_s[0, 0] == 0.5


def test_a_request_alone_on_an_idle_worker_takes_its_service_time_however_many_instances_there_are() -> None:
    q, s = allocate(Queue, 1, 1), allocate(Service, 1, 1)
    s.fixed_s[:], s.per_row_s[:], s.max_batch_rows[:], s.instances[:] = 0.08, 0.01, 4, 2
    assert queue.completion_now_s(q, s, (0, 0), 3.0, 0.0) == pytest.approx(0.08 + 3 * 0.01)
