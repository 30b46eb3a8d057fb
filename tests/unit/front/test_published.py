"""A policy that is not compiled is published: the module draws by its tables, less what was sent since, exactly."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.busy import MODELS, busy_report
from support.published import ASKED, REQUEST, SETTINGS, Thirds, drawn, lacking
from support.published import published_envoy as envoy
from support.settling import SEED, TAKEN, TURNED_AWAY

from balancer.core.errors import RoutingError
from balancer.core.events import WorkerAdded, WorkerRemoved
from balancer.core.settings import Limits, Settings
from balancer.front import tables
from balancer.front.layouts import LEVELS, TABLES
from balancer.front.router import SharedRouter
from policies import BUILTIN
from policies.base import Policy, Request

pytestmark = pytest.mark.usefixtures("no_time")


def mask_of(router: SharedRouter, request: Request, now_s: float) -> Any:
    return router.fleet.eligible(request.model, request.version, now_s)


@pytest.mark.parametrize("policy", [Thirds(), Thirds(even=True), Thirds(reads="completion_s")], ids=str)
@pytest.mark.parametrize("levels", [1, 5, LEVELS])
def test_draws_are_by_what_workers_lack_of_the_table(settle: Path, shared: Path, levels: int, policy: Policy) -> None:
    with envoy(settle, shared, policy) as e:
        e.router.tables.most_levels = levels
        e.begin()
        in_flight, mask = e.router.fleet.queue.in_flight, mask_of(e.router, REQUEST, e.now_s)
        for _ in range(6):
            for _ in range(40):
                shares = lacking(e.table, in_flight, mask)
                assert shares is not None
                before = in_flight.copy()
                answer, number, row, propensity = e.decide()
                assert answer == TAKEN
                assert (row, propensity) == drawn(shares, SEED, number)
                assert (in_flight - before)[row] == 1
            e.publish()
        assert bool(e.table["fixed"][0]) == (policy.even and levels > 1)  # type: ignore[attr-defined]  # of Thirds
        counts = e.router.state.counts()
        assert counts["published"] == counts["picked"] == 240
        assert in_flight.sum() == 241
        assert e.router.state.in_flight == 240


def test_what_ends_meanwhile_is_taken_off(settle: Path, shared: Path) -> None:
    """Where all have as many in flight, the one whose request ends is next."""
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        able = np.flatnonzero(mask_of(e.router, REQUEST, e.now_s))
        rows = [e.decide()[2] for _ in able[1:]]
        assert (e.router.fleet.queue.in_flight[able] == 1).all()
        for place in (3, 11, 7):
            e.end(1 + place, rows[place])
            assert e.decide()[2] == rows[place]


def test_many_at_once_go_where_they_would_one_by_one(settle: Path, shared: Path) -> None:
    """The table of a policy that puts all on one worker names others after it."""
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        for _ in range(4):
            for _ in range(50):
                e.decide()
            e.publish()
        there = e.router.fleet.queue.in_flight[mask_of(e.router, REQUEST, e.now_s)]
        assert there.max() - there.min() <= 3


def test_an_old_table_is_not_used(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        e.now_ns += 95_000_000
        assert e.decide()[0] == TAKEN
        e.now_ns += 10_000_000
        assert e.asks()
        e.publish()
        assert e.decide()[0] == TAKEN


def test_who_may_not_be_picked_has_no_share(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        able = np.flatnonzero(mask_of(e.router, REQUEST, e.now_s))
        for row in able[:-1]:
            e.router.observe(WorkerAdded(f"w{row}", draining=True), e.now_s)
        picked = {e.decide()[2] for _ in range(20)}
        assert picked <= {-1, able[-1]}
        e.publish()
        assert {e.decide()[2] for _ in range(20)} == {able[-1]}
        e.router.observe(WorkerAdded(f"w{able[-1]}", draining=True), e.now_s)
        assert e.asks()


def test_the_limits_hold(settle: Path, shared: Path) -> None:
    most = 4.0
    with envoy(settle, shared, Thirds(), Settings(limits=Limits(max_pending_per_worker=most), stale_after_s=1e9)) as e:
        e.begin()
        answers = []
        for _ in range(40):
            answers += [e.decide()[0] for _ in range(10)]
            e.publish()
        view = e.router.view
        with pytest.raises(RoutingError, match="pending"):
            view(REQUEST, e.now_s)
        able = mask_of(e.router, REQUEST, e.now_s)
        assert e.router.fleet.queue.in_flight[able].max() <= most
        assert answers[:5] == [TAKEN] * 5
        assert set(answers[-10:]) <= {ASKED, TURNED_AWAY}


def test_rows_that_moved_are_not_those_of_the_table(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        e.router.observe(WorkerRemoved("w3"), e.now_s)
        assert e.asks()
        e.publish()
        assert e.decide()[0] == TAKEN


@pytest.mark.parametrize(
    ("reads", "other"),
    [
        ("rows", {"rows": 7.0}),
        ("completion_s", {"rows": 7.0}),
        ("priority", {"priority": 2}),
        ("deadline_s", {"deadline_s": 1.0}),
        ("key", {"key": 5}),
    ],
)
def test_a_table_is_for_requests_alike_in_what_the_policy_reads(
    settle: Path, shared: Path, reads: str, other: dict[str, Any]
) -> None:
    request = dataclasses.replace(REQUEST, **other)
    settings = dataclasses.replace(SETTINGS, sticky_keys=False)
    with envoy(settle, shared, Thirds(), settings) as e:
        e.begin()
        assert not e.asks(request)
        e.router.configure(Thirds(reads=reads), settings)
        e.publish()
        assert not e.asks()
        assert e.asks(request)
        e.publish()
        # What is endless has no table of its own.
        assert e.asks(request) == (reads in {"deadline_s", "key"})
        assert not e.asks()


def test_each_model_and_version_has_a_table_and_there_are_not_too_many(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, Thirds(reads="rows")) as e:
        e.begin()
        assert e.asks(Request(MODELS[1]))
        assert e.asks(Request(MODELS[0], "1"))
        for model in MODELS[:3]:
            for rows in range(2, 3 * TABLES):
                assert e.asks(Request(model, rows=float(rows)))
        # Of a model and version as many as may be, at most, and of all.
        assert len(e.router.tables) == TABLES
        e.publish()
        of_one = [e.decide(dataclasses.replace(REQUEST, rows=float(rows)))[0] for rows in range(1, 3 * TABLES)]
        assert of_one.count(TAKEN) == tables.MOST_ALIKE
        # What nobody asks for any more makes room.
        e.publish()
        e.publish(1100)
        assert not len(e.router.tables)


def test_who_sends_ever_other_rows_takes_no_table_of_others(settle: Path, shared: Path) -> None:
    """Neither one that is in use, nor the room for one whose requests come again."""
    honest, later = Request(MODELS[1]), dataclasses.replace(REQUEST, rows=3.0)
    with envoy(settle, shared, Thirds(reads="rows")) as e:
        e.begin(honest)
        rows, taken = 100, Counter[float]()
        for each in range(40):
            for _ in range(3 * TABLES):
                rows += 1
                e.asks(dataclasses.replace(REQUEST, rows=float(rows)))
            assert e.decide(honest)[0] == TAKEN
            if each >= 10:
                taken[later.rows] += not e.asks(later)
            e.publish()
        assert len(e.router.tables) == tables.MOST_ALIKE + 1
        assert taken[later.rows] >= 20


def test_a_table_that_is_in_use_is_kept_whoever_comes(settle: Path, shared: Path) -> None:
    """Also where as many are as may be."""
    used = [dataclasses.replace(REQUEST, rows=float(rows)) for rows in range(1, 1 + tables.MOST_ALIKE)]
    with envoy(settle, shared, Thirds(reads="rows")) as e:
        e.begin()
        for request in used[1:]:
            assert e.asks(request)
        e.publish()
        for each in range(30):
            assert {e.decide(request)[0] for request in used} == {TAKEN}
            assert e.asks(dataclasses.replace(REQUEST, rows=1000.0 + each))
            e.publish()


def test_sequences_and_sticky_keys_are_placed_as_ever(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, Thirds()) as e:
        for sequence in (False, True):
            assert e.decide(dataclasses.replace(REQUEST, key=5, sequence=sequence))[0] == TAKEN
        assert e.router.state.counts()["published"] == 0


def test_a_swap_is_in_force_at_once(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, BUILTIN["least_requests"]()) as e:
        assert e.decide()[0] == TAKEN
        e.router.configure(Thirds(), SETTINGS)
        e.begin()
        assert e.decide()[0] == TAKEN
        assert e.router.state.counts()["published"] == 1
        e.router.configure(Thirds(sheds=True), SETTINGS)
        assert e.asks()
        e.router.configure(BUILTIN["wlpr"](), SETTINGS)
        assert e.decide()[0] == TAKEN
        assert e.router.state.counts()["published"] == 1


def test_what_gives_no_answer_or_sheds_is_asked_for(
    settle: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        for policy in (Thirds(raises=True), Thirds(sheds=True)):
            e.router.configure(policy, SETTINGS)
            for _ in range(5):
                e.publish()
                assert e.asks()
        # Once by what is published, and by each request.
        assert e.router.failures["thirds"] == 6
        assert [r.levelno for r in caplog.records if "asked for each request" in r.message] == [logging.ERROR]
        e.router.configure(Thirds(), SETTINGS)
        e.publish()
        assert not e.asks()


def test_a_state_that_takes_the_place_of_another_has_tables_soon(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        assert e.router.state.lock()
        e.router.tick(e.now_s)
        assert e.router.replaced == 1
        e.publish()
        e.now_ns += 200_000_000
        e.router.publish_tables(e.now_s)
        assert e.decide()[0] == TAKEN


@pytest.mark.parametrize("clock", ["thread_time", "perf_counter"])
def test_a_slow_policy_is_asked_less(settle: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    """Whether it computes or waits: more rarely, and once or twice for each table."""
    step_s = 0.004 if clock == "thread_time" else 0.02
    seconds = iter(range(10_000))
    monkeypatch.setattr(f"balancer.front.tables.time.{clock}", lambda: step_s * next(seconds))
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        for _ in range(3):
            asked = e.router.tables.asked
            for _ in range(30):
                e.decide()
            e.publish()
        assert e.router.tables.asked == asked + 1
        assert e.router.tables.wait_s >= 0.999 * step_s * (1 / tables.SHARE - 1)
        assert clock == "perf_counter" or e.table["upto"][0, 0] > 30


def test_tables_that_a_round_has_no_time_for_are_first_in_the_next(
    settle: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    with envoy(settle, shared, Thirds()) as e:
        requests = [Request(model) for model in MODELS]
        for request in requests:
            assert e.asks(request)
        monkeypatch.setattr("balancer.front.tables.time.perf_counter", lambda: 0.02 * next(seconds))
        e.publish()
        assert [e.decide(request)[0] for request in requests].count(TAKEN) == 1
        for _ in MODELS[1:]:
            e.publish()
        assert [e.decide(request)[0] for request in requests] == [TAKEN] * len(MODELS)


def test_reports_change_the_next_table(settle: Path, shared: Path) -> None:
    with envoy(settle, shared, Thirds()) as e:
        e.begin()
        before = e.table["targets"].copy()
        e.router.observe(busy_report(0, 50, everywhere=False), e.now_s)
        for _ in range(20):
            e.decide()
        e.publish()
        assert (e.table["targets"] != before).any()
