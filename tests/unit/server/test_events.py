"""What the event log keeps, and what the reporter writes into it and the log."""

import pytest
from support.page_fleet import PageFleet

from balancer.scheduler.events import ReportsLost
from balancer.server.events import MOST_EVENTS, EventLog, EventReporter, some


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_repeats_soon_is_one_event_and_later_another(clock: Clock) -> None:
    events = EventLog(clock)
    events.add("refused", "warning", "requests refused: shed", 3)
    clock.now_s += 50
    events.add("worker", "info", "listed: w")
    events.add("refused", "warning", "requests refused: shed", 4)
    first, second = events.newest_first()
    assert {(event.words, event.count) for event in (first, second)} == {
        ("requests refused: shed", 7),
        ("listed: w", 1),
    }
    clock.now_s += 61
    events.add("refused", "warning", "requests refused: shed")
    assert events.newest_first()[0].count == 1
    assert len(events.newest_first()) == 3


def test_it_is_bounded_in_number_and_length(clock: Clock) -> None:
    events = EventLog(clock)
    for number in range(10 * MOST_EVENTS):
        events.add("worker", "info", f"{number} {'x' * 10_000}")
    kept = events.newest_first()
    assert len(kept) == MOST_EVENTS
    assert max(len(event.words) for event in kept) < 500


def test_of_many_names_some_are_shown() -> None:
    assert some(["b", "a"]) == "a, b"
    assert some(f"w{number}" for number in range(9)) == "w0, w1, w2, w3, w4 and 4 more"


def words(fleet: PageFleet) -> list[str]:
    return sorted(event.words for event in fleet.events.newest_first())


def test_the_reporter_tells_of_silence_once_and_of_its_end() -> None:
    fleet = PageFleet(3)
    reporter = EventReporter(fleet.router, fleet.metrics, fleet.events, lambda: fleet.now_s)
    reporter.tick(fleet.now_s)
    assert words(fleet) == []
    fleet.router.observe(ReportsLost("worker-1"), fleet.now_s)
    for _ in range(2):
        fleet.now_s += 0.9
        for name in ("worker-0", "worker-2"):
            fleet.report(name, int(fleet.now_s * 10))
        reporter.tick(fleet.now_s)
    assert words(fleet) == ["no report for more than 1 s: worker-1"]
    fleet.report("worker-1", 2)
    reporter.tick(fleet.now_s + 1)
    assert "reports again: worker-1" in words(fleet)


def test_the_reporter_counts_refusals_and_invalid_answers() -> None:
    fleet = PageFleet(1)
    reporter = EventReporter(fleet.router, fleet.metrics, fleet.events, lambda: fleet.now_s)
    fleet.metrics.refusals.labels("shed").inc(5)
    for _ in range(2):
        fleet.router.count_failure("learned", "ValueError: no")
    for second in range(3):
        reporter.tick(fleet.now_s + second * 0.1)
    counts = {event.words: event.count for event in fleet.events.newest_first()}
    assert counts == {
        "requests refused: shed": 5,
        "learned gave no valid answer, so the least pending worker is picked: ValueError: no": 2,
    }


def test_a_policy_that_fails_at_each_request_is_logged_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    fleet = PageFleet(2)
    reporter = EventReporter(fleet.router, fleet.metrics, fleet.events, lambda: fleet.now_s)

    def logged(failures: int) -> list[int]:
        """The failures that a second with so many adds to the log."""
        caplog.clear()
        for _ in range(failures):
            fleet.router.count_failure("moody", "RuntimeError: moody")
        fleet.now_s += 1.0
        reporter.tick(fleet.now_s)
        assert all(record.getMessage().startswith("policy moody gave no valid answer, so") for record in caplog.records)
        return [vars(record)["failures"] for record in caplog.records]

    assert logged(0) == []
    assert logged(50) == [50]
    assert [logged(10) for _ in range(8)] == [[]] * 8
    # Those of the period before are logged when it is over, whatever comes then.
    fleet.now_s += 1.0
    assert logged(0) == [80]
    fleet.now_s += 30.0
    assert logged(0) == []
