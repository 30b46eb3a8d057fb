"""What the page's one document says, how large it may become, and that it is made for nobody but who asks."""

import json
import math

import pytest
from support.page_fleet import NOW_S, PageFleet

from balancer.kernel.settings import Settings
from balancer.scheduler.events import WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.page.document import DOCUMENT, MOST_WORKERS, PageDocument
from balancer.server.page.page_data import FRESH_S, TITLES
from balancer.server.tally import OutcomeKey
from policies.base import Request
from policies.columns import QUANTITIES
from policies.expected_latency import ExpectedLatency
from policies.round_robin import RoundRobin

MOST_BYTES = 1_500_000


def read(fleet: PageFleet, question: Request | None = None) -> PageDocument:
    return DOCUMENT.validate_json(fleet.page_data().latest(question))


def test_it_is_read_back_as_it_was_written() -> None:
    fleet = PageFleet(64)
    fleet.traffic(count=1000)
    fleet.break_some()
    text = fleet.page_data().latest(None)
    assert json.loads(text, parse_constant=pytest.fail)
    assert DOCUMENT.dump_json(DOCUMENT.validate_json(text)) == text
    assert DOCUMENT.validate_json(text).workers[1].report_age_s is None, "its stream broke: infinite"


def test_workers_have_a_state_and_the_reason_why_they_get_none() -> None:
    fleet = PageFleet(5)
    fleet.break_some()
    fleet.router.observe(WorkerAdded("new"), NOW_S)
    shown = read(fleet)
    states = {worker.name: (worker.state, bool(worker.why_not)) for worker in shown.workers}
    assert states == {
        "worker-0": ("ready", False),
        "worker-1": ("silent", True),
        "worker-2": ("not ready", True),
        "worker-3": ("draining", True),
        "worker-4": ("ready", False),
        "new": ("no report", True),
    }
    assert shown.states == {"ready": 2, "silent": 1, "not ready": 1, "draining": 1, "no report": 1}
    assert "its report stream broke" in shown.workers[1].why_not[0]


def test_who_drained_a_worker_is_shown() -> None:
    fleet = PageFleet(3)
    fleet.report("worker-0", 2, draining=True)
    fleet.report("worker-1", 2, draining=True)
    fleet.drained.add("worker-1")
    shown = read(fleet)
    assert [worker.state for worker in shown.workers] == ["draining", "drained by hand", "ready"]
    assert shown.states == {"draining": 1, "drained by hand": 1, "ready": 1}


def test_a_silent_worker_is_shown_by_its_age() -> None:
    fleet = PageFleet(2)
    fleet.now_s += 100
    fleet.report("worker-0", 2)
    first, second = read(fleet).workers
    assert (first.state, second.state) == ("ready", "silent")
    assert second.report_age_s == 100


def test_without_agents_workers_are_listed_and_any_model_is_explained() -> None:
    fleet = PageFleet(0)
    fleet.router = Router(RoundRobin(), Settings(reports_required=False))
    fleet.router.observe(WorkerAdded("w"), NOW_S)
    shown = read(fleet)
    assert [worker.state for worker in shown.workers] == ["listed"]
    assert [each["probability"] for each in shown.why["workers"]] == [1.0]


def test_traffic_is_shown_by_model_policy_and_worker() -> None:
    fleet = PageFleet(2)
    slow, fast = OutcomeKey("m", "worker-0", "wlpr"), OutcomeKey("m", "worker-1", "learned")
    fleet.recent.add([9.0] * 5, [0.2] * 5, True, True, slow)
    fleet.recent.add([9.0] * 5, [math.nan] * 5, False, True, slow)
    fleet.recent.add([9.0] * 20, [0.1] * 20, True, True, fast)
    shown = read(fleet)
    rows = [(row.model, row.policy, row.rate_per_s, row.errors, row.p50_s) for row in shown.recent.parts]
    assert rows == [("m", "learned", 4.0, 0, 0.1), ("m", "wlpr", 2.0, 5, 0.2)]
    workers = [(worker.answers_per_s, worker.errors, worker.p99_s) for worker in shown.workers]
    assert workers == [(2.0, 5, 0.2), (4.0, 0, 0.1)]
    assert (shown.recent.rate_per_s, shown.recent.errors, shown.recent.picked) == (6.0, 5, 30)


def test_the_model_with_the_most_traffic_is_explained_unless_another_is_asked_about() -> None:
    fleet = PageFleet(2)
    fleet.recent.add([9.0], [0.2], True, True, OutcomeKey("n", "worker-0", "wlpr"))
    assert read(fleet).why["model"] == "n"
    assert read(fleet, Request("m")).why["model"] == "m"
    assert read(fleet, Request("nobody's")).why["refused"] == 'no worker has model "nobody\'s"'


def test_the_columns_are_those_that_the_policy_reads() -> None:
    reads = {
        policy.name: [column.name for column in read(PageFleet(2, policy)).reads]
        for policy in (RoundRobin(), ExpectedLatency())
    }
    assert reads["round_robin"] == []
    assert {"completion_s", "error_rate"} <= set(reads["expected_latency"])


def test_a_fleet_without_models_says_so() -> None:
    fleet = PageFleet(0)
    shown = read(fleet)
    assert (shown.models, shown.why, shown.workers) == ([], {}, [])


def test_of_many_workers_those_that_are_not_well_are_shown_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("MOST_WORKERS", "MOST_PARTS"):
        monkeypatch.setattr(f"balancer.server.page.page_data.{limit}", 8)
    fleet = PageFleet(20, models=("m",), names={9: "x" * 256})
    for policy in range(11):
        fleet.traffic(f"policy {policy}", 4)
    fleet.break_some()
    shown = read(fleet)
    assert (len(shown.workers), shown.workers_left_out) == (8, 12)
    assert [worker.state for worker in shown.workers[:4]] == ["silent", "not ready", "draining", "ready"]
    assert (len(shown.why["workers"]), shown.why["workers_left_out"]) == (8, 12)
    assert all(each["eligible"] for each in shown.why["workers"]), "the most likely"
    assert (len(shown.recent.parts), shown.recent.parts_left_out) == (8, 3)


def test_the_largest_document_is_of_a_size_that_can_be_sent_each_second() -> None:
    few, more = (len(PageFleet(workers, models=("m",)).page_data().latest(None)) for workers in (10, 20))
    assert few + MOST_WORKERS * (more - few) / 10 < MOST_BYTES


def test_of_many_models_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.server.page.page_data.MOST_MODELS", 4)
    shown = read(PageFleet(1, models="abcdefg"))
    assert (shown.models, shown.models_left_out) == (["a", "b", "c", "d"], 3)


def test_it_is_made_once_for_all_who_ask_the_same_and_few_are_kept() -> None:
    fleet = PageFleet(2)
    page_data = fleet.page_data()
    assert page_data.made == 0
    assert page_data.latest(None) is page_data.latest(None)
    assert page_data.made == 1
    fleet.now_s += FRESH_S
    page_data.latest(None)
    assert page_data.made == 2
    for number in range(50):
        page_data.latest(Request(f"model {number}"))
    assert len(page_data._kept) <= 16


def test_columns_that_a_policy_reads_have_plain_words() -> None:
    assert set(TITLES) == set(QUANTITIES)
    shown = read(PageFleet(policy=ExpectedLatency()))
    assert shown.process.decides == "expected_latency"
    assert {column.name: column.title for column in shown.reads}["pending_other_models"] == "queue of other models"
