from collections.abc import Sequence

import numpy as np
import pytest
from support.estimators import allocate

from balancer.kernel.estimators import queue, service
from balancer.kernel.estimators.queue import Queue
from balancer.kernel.estimators.service import Service


def pending_now(q: Queue, now_s: float) -> np.ndarray:
    return queue.pending_now(q, ..., queue.peer_share_left(q, ..., now_s))


def reported(q: Queue, pending: float, executing: float, work_s: float, balancers: int, now_s: float) -> None:
    q.balancers[0] = balancers
    queue.reported(q, 0, pending, executing, work_s, now_s)


def backlog_now_s(q: Queue, now_s: float) -> np.ndarray:
    return queue.backlog_now_s(q, ..., now_s, queue.peer_share_left(q, ..., now_s))


def fade(s: Service, first: int, workers: int, share: float, default_s: float, kinds: Sequence[int] = ()) -> None:
    """All workers are of kinds of their own, unless `kinds` are given."""
    kind = np.array(kinds or range(len(s.weight)), float)
    service.fade(s, kind, first, workers, share, default_s)


def make_service(
    workers: int = 1, fixed_s: float = 0.08, per_row_s: float = 0.01, max_batch: int = 4, models: int = 1
) -> Service:
    s = allocate(Service, workers, models)
    s.fixed_s[:], s.per_row_s[:], s.max_batch_rows[:] = fixed_s, per_row_s, max_batch
    return s


class TestService:
    def test_recovers_an_affine_time_from_batches_of_several_sizes(self) -> None:
        s = allocate(Service, 1, 1)
        for _ in range(20):
            for rows in (1, 4, 8, 16):
                service.observe(s, 0, 0, rows, 10, 10 * (0.010 + 0.002 * rows), memory=1000, waited=False)
        assert s.fixed_s[0, 0] == pytest.approx(0.010, rel=0.02)
        assert s.per_row_s[0, 0] == pytest.approx(0.002, rel=0.02)

    def test_one_batch_size_is_predicted_exactly_and_both_parts_are_positive(self) -> None:
        s = allocate(Service, 1, 1)
        service.observe(s, 0, 0, 8, 1000, 50.0, memory=1000, waited=False)
        assert s.fixed_s[0, 0] + 8 * s.per_row_s[0, 0] == pytest.approx(0.05, rel=0.02)
        assert s.fixed_s[0, 0] > 0
        assert s.per_row_s[0, 0] > 0

    def test_a_slowed_device_is_noticed_within_its_memory(self) -> None:
        s = allocate(Service, 1, 1)
        service.observe(s, 0, 0, 1, 1000, 10.0, memory=100, waited=False)
        for _ in range(30):
            service.observe(s, 0, 0, 1, 10, 0.3, memory=100, waited=False)
        assert s.fixed_s[0, 0] + s.per_row_s[0, 0] == pytest.approx(0.03, rel=0.2)

    def test_a_new_worker_is_taken_for_as_fast_as_the_fastest_known(self) -> None:
        s = allocate(Service, 3, 1)
        fade(s, 0, len(s.weight), 0.0, default_s=1.0)
        for worker, time_s in ((0, 0.4), (1, 0.1)):
            service.observe(s, worker, 0, 4, 50, 50 * time_s, memory=100, waited=False)
        for _ in range(3):
            fade(s, 0, len(s.weight), 0.0, default_s=1.0)
        assert s.fixed_s[2, 0] == pytest.approx(s.fixed_s[1, 0], rel=0.1)

    def test_what_may_have_waited_longer_than_expected_has_a_quarter_of_the_weight(self) -> None:
        for time_s, waited, weight in ((0.005, True, 1), (0.010, True, 1), (0.011, True, 0.25), (0.011, False, 1)):
            s = allocate(Service, 1, 1)
            s.fixed_s[:], s.per_row_s[:] = 0.006, 0.002  # 10 ms for two rows
            service.observe(s, 0, 0, 2, 1, time_s, memory=1000, waited=waited)
            assert s.weight[0, 0] == pytest.approx(weight, rel=0.001)
            assert s.seconds[0, 0] == pytest.approx(weight * time_s, rel=0.001)

    def test_forgetting_takes_the_share_of_every_sum(self) -> None:
        s = allocate(Service, 1, 1)
        for rows in (1, 4):
            service.observe(s, 0, 0, rows, 10, 0.01 * rows, memory=100, waited=False)
        before = {name: float(array[0, 0]) for name, array in vars(s).items()}
        fade(s, 0, 1, 0.25, default_s=0.1)
        sums = {"weight", "rows", "rows_squared", "seconds", "rows_seconds"}
        for name in sums:
            assert getattr(s, name)[0, 0] == pytest.approx(0.75 * before[name])
        for name in ("profile_fixed_s", "profile_per_row_s", "max_batch_rows", "instances"):
            np.testing.assert_array_equal(getattr(s, name)[0, 0], before[name])

    def test_only_a_worker_that_is_well_known_is_a_prior_for_those_of_other_kinds(self) -> None:
        s = allocate(Service, 2, 1)
        fade(s, 0, 2, 0.0, default_s=0.1)
        service.observe(s, 0, 0, 1, 4, 4 * 0.001, memory=1000, waited=False)
        fade(s, 0, 2, 0.0, default_s=0.1)
        assert s.fixed_s[1, 0] + s.per_row_s[1, 0] == pytest.approx(0.1)
        service.observe(s, 0, 0, 1, 4, 4 * 0.001, memory=1000, waited=False)
        fade(s, 0, 2, 0.0, default_s=0.1)
        assert s.fixed_s[1, 0] + s.per_row_s[1, 0] < 0.03

    def test_models_are_known_apart_and_so_are_fleets(self) -> None:
        s = allocate(Service, 4, 2)
        for w, m, time_s in ((0, 0, 0.001), (1, 0, 0.3), (1, 1, 0.02), (2, 0, 0.7)):
            service.observe(s, w, m, 1, 1000, 1000 * time_s, memory=1000, waited=False)
        for first in (0, 2):  # two fleets of two workers each
            fade(s, first, 2, 0.0, default_s=0.1)
        prior_s = s.prior_fixed_s + s.prior_per_row_s
        np.testing.assert_allclose(prior_s[:, 0], [0.001, 0.001, 0.7, 0.7], rtol=0.05)
        np.testing.assert_allclose(prior_s[:, 1], [0.02, 0.02, 0.1, 0.1], rtol=0.05)

    def test_rows_beyond_a_batch_need_another(self) -> None:
        s = make_service(fixed_s=0.08, per_row_s=0.01, max_batch=4)
        times_s = [float(service.alone_s(s, (0, 0), float(rows))) for rows in (1, 4, 5, 8, 9)]
        assert times_s == pytest.approx([0.09, 0.12, 0.21, 0.24, 0.33])


class TestQueue:
    def test_the_first_executes_alone_and_those_that_wait_share_the_fixed_time_of_a_batch(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service()
        for _ in range(1 + 4):
            queue.sent(q, s, 0, 0, 1, now_s=0.0)
        assert q.executing_s[0] == pytest.approx(0.08 + 0.01)
        assert q.known_work_s[0] == pytest.approx(2 * 0.08 + 5 * 0.01)
        queue.sent(q, s, 0, 0, 1, now_s=0.0)
        assert q.known_work_s[0] == pytest.approx(3 * 0.08 + 6 * 0.01)

    def test_when_a_batch_ends_those_that_wait_execute_as_far_as_they_fit(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service()
        for _ in range(1 + 5):
            queue.sent(q, s, 0, 0, 1, now_s=0.0)
        queue.ended(q, s, 0, 0, 1, now_s=0.1)
        assert (q.waiting_rows[0, 0], q.known_rows[0, 0]) == (1, 5)
        assert q.executing_s[0] == pytest.approx(0.08 + 4 * 0.01)

    def test_as_many_execute_side_by_side_as_there_are_instances(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service()
        s.instances[:] = 2
        for now_s in (0.0, 1.0, 1.0):
            queue.sent(q, s, 0, 0, 1, now_s)
        assert q.waiting_rows[0, 0] == 1
        # The first has been at it for no longer than it takes, and the second has only begun.
        assert backlog_now_s(q, 1.0)[0] == pytest.approx(2 * 0.09)

    def test_what_executes_of_a_queue_shared_with_other_balancers_is_not_known(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service()
        q.balancers[0] = 2
        for _ in range(2):
            queue.sent(q, s, 0, 0, 1, now_s=0.0)
        assert q.waiting_rows[0, 0] == 2
        assert q.known_work_s[0] == pytest.approx(0.08 + 2 * 0.01)
        queue.ended(q, s, 0, 0, 1, now_s=1.0)
        assert q.waiting_rows[0, 0] == 1

    def test_others_are_what_the_report_has_beyond_ours_and_drain_with_age(self) -> None:
        q = allocate(Queue, 1, 1)
        reported(q, pending=6, executing=4, work_s=1.0, balancers=2, now_s=0.0)
        assert pending_now(q, 0.0)[0] == 10
        assert pending_now(q, 0.5)[0] == pytest.approx(5)
        assert pending_now(q, 2.0)[0] == 0

    def test_other_balancers_are_assumed_to_send_as_we_do(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service(max_batch=1)
        reported(q, pending=0, executing=0, work_s=0.0, balancers=3, now_s=0.0)
        queue.sent(q, s, 0, 0, 1, now_s=0.0)
        assert pending_now(q, 0.0)[0] == 3

    def test_of_a_lone_balancers_worker_others_have_a_share_of_the_work_that_lies_there(self) -> None:
        q = allocate(Queue, 1, 1)
        q.in_flight[0] = 2
        reported(q, pending=6, executing=2, work_s=2.0, balancers=1, now_s=0.0)
        assert (q.peer_in_flight[0], q.peer_work_s[0]) == (4, 1.0)

    def test_several_balancers_share_batches_so_others_have_the_work_that_own_requests_do_not_take(self) -> None:
        q = allocate(Queue, 1, 1)
        q.in_flight[0], q.known_work_s[0] = 4, 1.5
        reported(q, pending=6, executing=2, work_s=2.0, balancers=2, now_s=0.0)
        assert (q.peer_in_flight[0], q.peer_work_s[0]) == (4, 0.5)
        reported(q, pending=4, executing=0, work_s=1.0, balancers=2, now_s=0.0)
        assert (q.peer_in_flight[0], q.peer_work_s[0]) == (0, 0)

    def test_the_device_works_for_others_and_us_by_what_lies_there(self) -> None:
        q = allocate(Queue, 1, 1)
        q.known_work_s[0] = 1.0
        reported(q, pending=8, executing=0, work_s=2.0, balancers=2, now_s=0.0)
        assert pending_now(q, 0.5)[0] == pytest.approx(8 * 0.75)
        assert pending_now(q, 2.0)[0] == 0

    def test_what_others_send_adds_to_what_is_left_of_theirs_now(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service(fixed_s=0.0, per_row_s=0.0)
        reported(q, pending=6, executing=4, work_s=1.0, balancers=3, now_s=0.0)
        queue.sent(q, s, 0, 0, 1, now_s=0.5)
        # Of the ten half are left, and two others send one each as we do.
        assert (q.peer_in_flight[0], q.peer_work_s[0]) == (5 + 2, 0.5)
        queue.sent(q, s, 0, 0, 1, now_s=0.75)
        assert (q.peer_in_flight[0], q.peer_work_s[0]) == (3.5 + 2, 0.25)

    def test_what_is_left_of_theirs_when_more_come_depends_on_our_work_beside_it(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service(fixed_s=0.0, per_row_s=0.0)
        q.known_work_s[0] = 1.0
        reported(q, pending=8, executing=0, work_s=2.0, balancers=2, now_s=0.0)
        queue.sent(q, s, 0, 0, 1, now_s=0.5)
        assert (q.peer_in_flight[0], q.peer_work_s[0]) == (8 * 0.75 + 1, 0.75)

    def test_a_report_replaces_what_was_reckoned_of_others(self) -> None:
        q = allocate(Queue, 1, 1)
        reported(q, pending=6, executing=4, work_s=1.0, balancers=2, now_s=0.0)
        reported(q, pending=2, executing=0, work_s=0.2, balancers=2, now_s=5.0)
        assert (q.reported_pending[0], pending_now(q, 5.0)[0]) == (2, 2)
        assert pending_now(q, 5.1)[0] == pytest.approx(1)

    def test_what_executes_began_no_sooner_than_the_last_sign_of_progress(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service(max_batch=1)
        s.instances[:] = 2
        for _ in range(2):
            queue.sent(q, s, 0, 0, 1, now_s=0.0)
        queue.ended(q, s, 0, 0, 1, now_s=1.0)
        assert q.progress_s[0] == 1.0
        queue.sent(q, s, 0, 0, 1, now_s=1.0)
        assert backlog_now_s(q, 1.0)[0] == pytest.approx(2 * 0.09)

    def test_a_request_that_joins_a_batch_that_waits_adds_its_rows_alone(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service(max_batch=4)
        s.instances[:] = s.parallel[:] = 2
        for _ in range(3):
            queue.sent(q, s, 0, 0, 1, now_s=0.0)
        backlog_s = float(backlog_now_s(q, 0.0)[0])
        assert backlog_s == pytest.approx(3 * 0.09 / 2)
        # Three rows more make a batch of four with the one that waits; a fourth needs a batch of its own.
        assert queue.completion_now_s(q, s, (0, 0), 3.0, backlog_s) == pytest.approx(backlog_s + 3 * 0.01 / 2)
        assert queue.completion_now_s(q, s, (0, 0), 4.0, backlog_s) == pytest.approx(backlog_s + (0.08 + 4 * 0.01) / 2)

    def test_models_that_take_turns_put_what_is_beyond_the_requests_own_turn_behind_it(self) -> None:
        q, s = allocate(Queue, 1, 2), make_service(max_batch=4, models=2)
        # One row of each executes; four batches of the second model wait, and one row of the first.
        for m, rows in ((0, 1), (1, 1), (0, 1), (1, 16)):
            queue.sent(q, s, 0, m, rows, now_s=0.0)
        # A row of the first joins the one that waits: its turn, one batch of the other goes before, three after.
        four_s = 4 * 0.08 + 16 * 0.01
        assert queue.work_behind_now_s(q, s, (0, 0), 1.0, 1.0) == pytest.approx(3 / 4 * four_s)
        # Eight rows come in the third turn, and have three of the other before them.
        assert queue.work_behind_now_s(q, s, (0, 0), 8.0, 1.0) == pytest.approx(1 / 4 * four_s)
        # Whoever comes fifth for the second model has the first's before it.
        assert queue.work_behind_now_s(q, s, (0, 1), 1.0, 1.0) == 0

    def test_a_lone_balancer_trusts_its_own_count_over_the_lagging_average(self) -> None:
        q, s = allocate(Queue, 1, 1), make_service()
        queue.sent(q, s, 0, 0, 1, now_s=0.0)
        reported(q, pending=0, executing=4, work_s=0.5, balancers=1, now_s=0.0)
        assert pending_now(q, 0.0)[0] == 1


def test_leading_axes_give_what_single_fleets_give() -> None:
    rng = np.random.default_rng(1)
    batched = allocate(Queue, 5, 2, batch=(3,))
    for f in (
        "in_flight",
        "known_work_s",
        "executing_s",
        "peer_in_flight",
        "peer_work_s",
        "peer_counted_s",
        "progress_s",
    ):
        getattr(batched, f)[:] = rng.uniform(0, 3, (3, 5))
    for e in range(3):
        single = Queue(**{name: getattr(batched, name)[e] for name in vars(batched)})
        np.testing.assert_array_equal(pending_now(batched, 2.0)[e], pending_now(single, 2.0))
        np.testing.assert_array_equal(backlog_now_s(batched, 2.0)[e], backlog_now_s(single, 2.0))


def test_what_executes_is_worked_off_with_time_and_counts_again_as_far_as_it_is_overdue() -> None:
    """Services of 90 ms: one executes, two wait."""
    q, s = allocate(Queue, 1, 1), make_service(max_batch=1)
    for _ in range(3):
        queue.sent(q, s, 0, 0, 1, now_s=0.0)
    for now_s, left_s in ((0.0, 0.09), (0.05, 0.04), (0.09, 0.0), (0.1, 0.01), (0.5, 0.41)):
        assert backlog_now_s(q, now_s)[0] == pytest.approx(0.18 + left_s)


def test_an_execution_that_is_overdue_for_long_counts_ever_less_since_its_end_may_not_have_been_seen() -> None:
    q, s = allocate(Queue, 1, 1), make_service(max_batch=1)
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    for now_s, left_s in ((9.5 * 0.09, 8.5 * 0.09), (15 * 0.09, 5 * 0.09), (20 * 0.09, 0.0), (300.0, 0.0)):
        assert backlog_now_s(q, now_s)[0] == pytest.approx(left_s)


@pytest.mark.parametrize(
    ("spread", "left"),
    # A share of 90 ms each: due, as an exponential time has it, and as one that differs much.
    [(0.0, (0.5, 0.0, 0.5)), (0.25, (0.75, 0.5, 0.5)), (1.0, (1.0, 1.0, 1.0)), (4.0, (1.5, 2.0, 2.5))],
)
def test_where_executions_differ_what_has_taken_long_takes_longer_yet(spread: float, left: tuple[float, ...]) -> None:
    q, s = allocate(Queue, 1, 1), make_service(max_batch=1)
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    q.spread[0] = spread
    for lasted, share in zip((0.5, 1.0, 1.5), left, strict=True):
        assert backlog_now_s(q, lasted * 0.09)[0] == pytest.approx(share * 0.09)


@pytest.mark.parametrize("executions", [1, 4])
def test_how_much_executions_differ_is_learned_whatever_number_a_report_tells_of(executions: int) -> None:
    q, dice = allocate(Queue, 1, 1), np.random.default_rng(0)
    times = dice.lognormal(-0.5 * np.log(2), np.sqrt(np.log(2)), (3000, executions)).mean(axis=1)  # varied by 1
    found = []
    for took in times:
        queue.observe_spread(q, 0, executions, float(took))
        found.append(float(q.spread[0]))
    assert 0.8 < np.mean(found[500:]) < 1.1


def test_one_report_of_a_pause_is_no_spread() -> None:
    q = allocate(Queue, 1, 1)
    queue.observe_spread(q, 0, 10.0, 1000.0)
    assert q.spread[0] == pytest.approx(1.0)


def test_nothing_is_overdue_where_nothing_executes() -> None:
    q, s = allocate(Queue, 2, 1), make_service(2, max_batch=1)
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    queue.ended(q, s, 0, 0, 1, now_s=0.1)
    q.balancers[1] = 2
    queue.sent(q, s, 1, 0, 1, now_s=0.0)
    assert backlog_now_s(q, 0.5).tolist() == pytest.approx([0.0, 0.09])


def test_with_several_balancers_it_joins_what_waits_of_all_of_them() -> None:
    q, s = allocate(Queue, 1, 1), make_service(max_batch=8)
    q.balancers[0] = 3
    work_s = queue.take_lying(q, s, 0, 0, pending=2, executing=4, rows=2)
    assert work_s == pytest.approx((0.08 + 4 * 0.01) + (0.08 + 8 * 0.01))
    queue.reported(q, 0, pending=2, executing=4, work_s=work_s, now_s=0.0)
    assert queue.completion_now_s(q, s, (0, 0), 4.0, work_s) == pytest.approx(work_s + 4 * 0.01)
    # One of ours, and one of each of two others: all of the work is counted, once.
    queue.sent(q, s, 0, 0, 1, now_s=0.0)
    assert q.forming_rows[0, 0] == 4 + 3
    assert queue.backlog_now_s(q, 0, 0.0, queue.peer_share_left(q, 0, 0.0)) == pytest.approx(work_s + 3 * 0.01)
    # The batch has room for one row more.
    assert queue.completion_now_s(q, s, (0, 0), 1.0, 0.0) == pytest.approx(0.01)
    assert queue.completion_now_s(q, s, (0, 0), 2.0, 0.0) == pytest.approx(0.08 + 2 * 0.01)
    # Half of the work later, half of what waited does so still.
    forming = queue.forming_now(q, 0, (work_s + 3 * 0.01) / 2)
    assert forming == pytest.approx(0.5)
    assert queue.completion_now_s(q, s, (0, 0), 4.0, 0.0, forming) == pytest.approx(4 * 0.01)


def test_what_waits_of_a_model_with_two_versions_is_that_of_both() -> None:
    q, s = allocate(Queue, 1, 1), make_service(max_batch=8)
    q.balancers[0], q.forming_rows[0, 0] = 2, 5
    queue.forget_forming(q, 0, np.zeros(2))
    assert [queue.take_lying(q, s, 0, 0, 2, 0, rows=1) for _ in range(2)] == pytest.approx([0.10, 0.02])
    assert q.forming_rows[0, 0] == 4


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
    q, s = allocate(Queue, 1, 1), make_service()
    s.instances[:] = 2
    assert queue.completion_now_s(q, s, (0, 0), 3.0, 0.0) == pytest.approx(0.08 + 3 * 0.01)
