"""What /explain takes, and what asking leaves behind."""

import json
import math
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from support.fleets import make_router, model, report

from balancer.bounds import MAX_PRIORITY, MAX_ROWS, OutOfBoundsError
from balancer.kernel.settings import ModelSettings, Settings, SplitSettings, ZoneSettings
from balancer.scheduler.canary.split import Splits
from balancer.scheduler.events import WorkerAdded
from balancer.server.page.explain import explain, read_question
from policies.base import Request
from policies.expected_latency import ExpectedLatency


def question(text: str) -> Request:
    return read_question(dict(parse_qsl(text, keep_blank_values=True)))


def test_the_largest_that_is_allowed() -> None:
    name = "ä" * 128
    parsed = question(
        f"model={name}&version={name}&key={name}&rows={MAX_ROWS}&priority={MAX_PRIORITY}&deadline_ms=1e12"
    )
    assert (parsed.model, parsed.version, parsed.rows, parsed.priority) == (name, name, MAX_ROWS, MAX_PRIORITY)
    assert parsed.deadline_s == 1e9
    assert question("model=m").deadline_s == math.inf


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("", "model", "model: '' is refused; it must be given"),
        (f"model={'m' * 257}", "model", "256 bytes"),
        (f"model=m&version={'9' * 257}", "version", "256 bytes"),
        (f"model=m&key={'k' * 257}", "key", "256 bytes"),
        ("model=m&rows=1e308", "rows", "from 1 to 65536"),
        ("model=m&rows=0", "rows", "from 1 to 65536"),
        ("model=m&rows=-1e6", "rows", "from 1 to 65536"),
        ("model=m&rows=1.5", "rows", "whole number"),
        ("model=m&rows=nan", "rows", "'nan' is refused"),
        ("model=m&rows=inf", "rows", "from 1 to 65536"),
        (f"model=m&rows={'9' * 5000}", "rows", "256 bytes"),
        ("model=m&rows=", "rows", "'' is refused"),
        ("model=m&priority=-1", "priority", f"from 0 to {MAX_PRIORITY}"),
        ("model=m&priority=1e300", "priority", f"from 0 to {MAX_PRIORITY}"),
        ("model=m&deadline_ms=-1", "deadline_ms", "from 0"),
        ("model=m&deadline_ms=inf", "deadline_ms", "to 1e+12"),
        ("model=m&deadline_ms=x", "deadline_ms", "'x' is refused"),
        ("model=m&" + "z" * 300 + "=1", "parameter", "must be one of deadline_ms, key"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name_value_and_limit(text: str, field: str, words: str) -> None:
    with pytest.raises(OutOfBoundsError) as refused:
        question(text)
    assert refused.value.field == field
    assert words in str(refused.value)
    assert len(str(refused.value)) < 300


def test_where_nobody_is_eligible_each_worker_has_its_probability_and_what_is_seen_of_it() -> None:
    router = make_router(2)
    for name in ("w0", "w1"):
        router.observe(report(name, number=2, ready=False), 0.0)
    page = explain(router, Request("m", rows=4), 0.1)
    assert "no worker may serve model 'm'" in page["refused"]
    for worker in page["workers"]:
        assert worker["probability"] == 0.0
        assert worker["eligible"] is False
        assert worker["why_not"] == ["not ready"]
        assert worker["sees"]["completion_s"] > 0
    eligible = explain(make_router(2), Request("m"), 0.1)["workers"][0]
    assert page["workers"][0].keys() == eligible.keys()


def test_the_chapters_sample_has_what_a_real_answer_has() -> None:
    settings = Settings(models={"m": ModelSettings(devices=("V100",))})
    router = make_router(1, ExpectedLatency(), settings)
    router.observe(WorkerAdded("w1", device="V100"), 0.0)
    router.observe(report("w1"), 0.0)
    answer = explain(router, Request("m"), 0.1)
    chapter = Path(__file__).parents[4] / "docs" / "operate" / "metrics.md"
    sample = chapter.read_text().split("<!-- explain -->")[1].split("<!-- /explain -->")[0]
    # Of the first worker the end is left out.
    whole = json.loads("{\n" + sample.split("\n{\n")[1].split("```")[0].replace(",\n...\n", "},\n"))
    assert list(whole) == list(answer)
    assert whole["reads"] == answer["reads"]
    left_out, picked = whole["workers"]
    assert list(picked) == list(answer["workers"][1])
    assert list(picked["sees"]) == list(answer["workers"][1]["sees"])
    assert left_out["why_not"] == ["device A100 is not one of V100"]


def test_a_version_that_nobody_has_says_who_has_which() -> None:
    page = explain(make_router(1), Request("m", version="7"), 0.1)
    assert page["refused"] == "no worker has model 'm' version '7'"
    assert page["workers"][0]["why_not"] == ["version 7 of m is not loaded (it has 1)"]


def test_a_pinned_version_is_explained_by_the_router() -> None:
    router = make_router(1, settings=Settings(models={"m": ModelSettings(versions=("2",))}))
    assert explain(router, Request("m"), 0.1)["workers"][0]["why_not"] == [
        "version 1 of m is not permitted (pinned to 2)"
    ]


def a_split(share: float) -> Splits:
    splits = Splits()
    splits.configure({"m": SplitSettings("1", "2", share)})
    return splits


def test_of_a_split_the_share_is_shown_and_what_the_key_gets() -> None:
    splits, router = a_split(0.5), make_router(1, models=[model(), model(version="2")])
    for key in range(20):
        page = explain(router, Request("m", key=key), 0.1, splits)
        drawn = splits.draw(Request("m", key=key))
        assert drawn is not None
        assert page["split"] == {"old": "1", "new": "2", "share": 0.5, "returned": "", "gets": drawn.version}
        assert page["version"] == drawn.version


def test_asking_is_no_part_of_the_split() -> None:
    explained, untouched = a_split(0.5), a_split(0.5)
    for key in range(20):
        explain(make_router(1), Request("m", key=key), 0.1, explained)
        explain(make_router(1), Request("m"), 0.1, explained)
    for key in (None, *range(20)):
        one, other = explained.draw(Request("m", key=key)), untouched.draw(Request("m", key=key))
        assert one is not None
        assert other is not None
        assert (one.version, one.bets) == (other.version, other.bets)


def test_without_a_key_the_version_is_drawn_for_each_request_but_where_one_gets_all() -> None:
    page = explain(make_router(1), Request("m"), 0.1, a_split(0.5))
    assert page["split"]["gets"].startswith("drawn for each request")
    assert page["version"] == ""
    assert [explain(make_router(1), Request("m"), 0.1, a_split(share))["split"]["gets"] for share in (0, 1)] == [*"12"]


def test_a_split_that_returned_gives_the_old_version_and_says_why() -> None:
    splits = a_split(0.5)
    splits.of["m"].returned = "5.0% failed"
    page = explain(make_router(1), Request("m", key=7), 0.1, splits)
    assert page["split"] == {"old": "1", "new": "2", "share": 0.0, "returned": "5.0% failed", "gets": "1"}


def test_a_version_that_no_worker_has_is_explained_to_whom_it_is_given() -> None:
    page = explain(make_router(1), Request("m"), 0.1, a_split(1))
    assert page["refused"] == "no worker has model 'm' version '2'"
    assert page["workers"][0]["why_not"] == ["version 2 of m is not loaded (it has 1)"]


def test_who_names_a_version_or_asks_for_another_model_is_shown_no_split() -> None:
    for request in (Request("m", version="1"), Request("other")):
        assert "split" not in explain(make_router(1), request, 0.1, a_split(0.5))


def test_a_worker_that_is_spared_is_explained() -> None:
    router = make_router(2, settings=Settings(slow_start_s=10.0, zones=ZoneSettings("a")))
    router.observe(WorkerAdded("far", zone="b"), 0.0)
    router.observe(report("far"), 0.0)
    router.observe(WorkerAdded("new"), 100.0)
    for name in ("w0", "w1", "far", "new"):
        router.observe(report(name, 2), 100.0)
    why = {each["worker"]: each["why_not"] for each in explain(router, Request("m"), 100.0)["workers"]}
    assert why == {
        "w0": [],
        "w1": [],
        "far": ["in zone b, and a nearer worker is expected to be done soon enough"],
        "new": ["new here: it gets part of the requests until its service times are known (discovery.slow_start_s)"],
    }


def test_of_very_many_workers_those_that_are_not_looked_at_are_explained() -> None:
    router = make_router(40, settings=Settings(sampled_workers=2))
    workers = explain(router, Request("m"), 0.0)["workers"]
    why = ["one of very many: this request looks at others (requests.sampled_workers)"]
    assert all(worker["why_not"] == ([] if worker["eligible"] else why) for worker in workers)
    assert 0 < sum(worker["eligible"] for worker in workers) < 40


def test_names_that_are_asked_about_are_not_kept() -> None:
    router = make_router(2, models=[model("m"), model("n")])
    explain(router, Request("m"), 0.1)

    def kept() -> tuple[int, int, int]:
        fleet = router.fleet
        return len(fleet.models), len(fleet._servable), len(fleet._eligible)

    before = kept()
    for number in range(5000):
        explain(router, Request(f"model {number}"), 0.1)
        explain(router, Request("m", version=f"version {number}"), 0.1)
    assert kept() == before
    assert router.failures.total() == 0
    # Nor are decisions counted.
    assert router.route(Request("m"), 0.1).number == 0
