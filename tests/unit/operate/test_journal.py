"""What the journal keeps, and what the lookout writes into it."""

from __future__ import annotations

import pytest
from support.page_fleet import PageFleet

from balancer.core.events import ReportsLost
from balancer.operate.journal import MOST_EVENTS, Journal, some
from balancer.operate.lookout import Lookout


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_repeats_soon_is_one_event_and_later_another(clock: Clock) -> None:
    journal = Journal(clock)
    journal.add("refused", "warning", "requests refused: shed", 3)
    clock.now_s += 50
    journal.add("worker", "info", "listed: w")
    journal.add("refused", "warning", "requests refused: shed", 4)
    first, second = journal.newest_first()
    assert {(event.words, event.count) for event in (first, second)} == {
        ("requests refused: shed", 7),
        ("listed: w", 1),
    }
    clock.now_s += 61
    journal.add("refused", "warning", "requests refused: shed")
    assert journal.newest_first()[0].count == 1
    assert len(journal.newest_first()) == 3


def test_it_is_bounded_in_number_and_length(clock: Clock) -> None:
    journal = Journal(clock)
    for number in range(10 * MOST_EVENTS):
        journal.add("worker", "info", f"{number} {'x' * 10_000}")
    events = journal.newest_first()
    assert len(events) == MOST_EVENTS
    assert max(len(event.words) for event in events) < 500


def test_of_many_names_some_are_told() -> None:
    assert some(["b", "a"]) == "a, b"
    assert some(f"w{number}" for number in range(9)) == "w0, w1, w2, w3, w4 and 4 more"


def words(fleet: PageFleet) -> list[str]:
    return sorted(event.words for event in fleet.journal.newest_first())


def test_the_lookout_tells_of_silence_once_and_of_its_end() -> None:
    fleet = PageFleet(3)
    lookout = Lookout(fleet.router, fleet.metrics, fleet.journal)
    lookout.tick(fleet.now_s)
    assert words(fleet) == []
    fleet.router.observe(ReportsLost("worker-1"), fleet.now_s)
    for _ in range(2):
        fleet.now_s += 0.9
        for name in ("worker-0", "worker-2"):
            fleet.report(name, int(fleet.now_s * 10))
        lookout.tick(fleet.now_s)
    assert words(fleet) == ["no report for more than 1 s: worker-1"]
    fleet.report("worker-1", 2)
    lookout.tick(fleet.now_s + 1)
    assert "reports again: worker-1" in words(fleet)


def test_the_lookout_counts_refusals_and_invalid_answers() -> None:
    fleet = PageFleet(1)
    lookout = Lookout(fleet.router, fleet.metrics, fleet.journal)
    fleet.metrics.refusals.labels("shed").inc(5)
    fleet.router.failures["learned"] += 2
    fleet.router.last_failure = "ValueError: no"
    for second in range(3):
        lookout.tick(fleet.now_s + second * 0.1)
    counts = {event.words: event.count for event in fleet.journal.newest_first()}
    assert counts == {
        "requests refused: shed": 5,
        "learned gave no valid answer, another stood in: ValueError: no": 2,
    }
