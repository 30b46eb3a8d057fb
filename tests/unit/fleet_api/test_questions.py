"""One answer of many, where workers are not ready, disagree or are silent; the workers are functions here."""

import itertools
from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.fleets import make_router

from balancer.config.config import from_mapping
from balancer.discovery.workers import WorkerSpec
from balancer.fleet_api import questions
from balancer.fleet_api.fan_out import FailedError, Failure, FanOut, FleetCallCounts
from balancer.fleet_api.questions import Members, Question, Questions
from policies.round_robin import RoundRobin

AWAY = FailedError(Failure(grpc.StatusCode.UNAVAILABLE, "not there"))


class Fleet:
    """Three workers, each of which answers as the test says."""

    def __init__(self, **fleet: Any) -> None:
        self.members = members = Members(make_router(3, RoundRobin()))
        members.listed = tuple(
            WorkerSpec(name=f"w{row}", address="127.0.0.1", grpc_port=row + 1, http_port=row + 11) for row in range(3)
        )
        self.registry = CollectorRegistry()
        config = from_mapping({"fleet": fleet})
        self.questions = Questions(members, FanOut(), lambda: config, FleetCallCounts(self.registry))

    async def answer(self, call: str, answers: Mapping[str, Any]) -> Any:
        async def ask(worker: str) -> Any:
            if isinstance(answers[worker], Exception):
                raise answers[worker]
            return answers[worker]

        return await self.questions.answer(Question(call, "grpc", ask))

    def disagreements(self, call: str) -> float:
        return self.registry.get_sample_value("balancer_fleet_disagreements_total", {"call": call}) or 0.0


@pytest.mark.parametrize(("wanted", "ready"), [(1, True), (2, True), (3, False)])
async def test_so_many_workers_must_be_ready_for_the_server_to_be(wanted: int, ready: bool) -> None:
    answers = {"w0": {"ready": True}, "w1": {"ready": False}, "w2": {"ready": True}}
    answer = await Fleet(ready_workers=wanted).answer("ServerReady", answers)
    assert answer.content == {"ready": ready}


async def test_a_worker_that_is_silent_is_not_ready_and_is_named() -> None:
    answers = {"w0": AWAY, "w1": {"ready": True}, "w2": AWAY}
    fleet = Fleet(ready_workers=2)
    answer = await fleet.answer("ServerReady", answers)
    assert (answer.content, answer.missing) == ({"ready": False}, ("w0", "w2"))
    assert (await fleet.answer("ServerReady", dict.fromkeys(answers, AWAY))).content == {"ready": False}


async def test_workers_that_take_http_alone_are_ready_by_their_reports() -> None:
    fleet = Fleet(ready_workers=3)
    fleet.members.listed, fleet.members.unasked = fleet.members.listed[:1], frozenset({"w1", "w2"})
    for own, ready in ((True, True), (False, False)):
        assert (await fleet.answer("ServerReady", {"w0": {"ready": own}})).content == {"ready": ready}
    assert (await fleet.answer("ModelReady", {"w0": AWAY})).content == {"ready": True}
    unknown = FailedError(Failure(grpc.StatusCode.UNIMPLEMENTED, "no such method"))
    assert (await fleet.answer("ServerReady", {"w0": unknown})).content == {"ready": True}, "as its report says"
    fleet.members.unasked = frozenset()
    assert (await fleet.answer("ModelReady", {"w0": unknown})).content == {"ready": True}
    fleet.members.listed = ()
    with pytest.raises(FailedError, match="no worker is listed"):
        await fleet.answer("ServerMetadata", {})


async def test_workers_that_disagree_are_counted_and_the_first_is_believed() -> None:
    fleet = Fleet()
    answers = {"w0": {"name": "w0", "version": "2.51"}, "w1": {"name": "w1", "version": "2.52"}, "w2": AWAY}
    assert (await fleet.answer("ServerMetadata", answers)).content == {"name": "triton", "version": "2.51"}
    assert fleet.disagreements("ServerMetadata") == 1
    answers["w1"] = {"name": "w1", "version": "2.51"}
    await fleet.answer("ServerMetadata", answers)
    assert fleet.disagreements("ServerMetadata") == 1, "names differ by right"


async def test_a_region_is_listed_where_any_worker_has_it() -> None:
    answers = {"w0": {"r": {"key": "/r"}}, "w1": {}, "w2": {"s": {"key": "/s"}}}
    found = await Fleet().answer("SystemSharedMemoryStatus", answers)
    assert found.content == {"r": {"key": "/r"}, "s": {"key": "/s"}}


def model_stats(count: int, batches: dict[int, int], last: int = 0, **fields: Any) -> dict[str, Any]:
    stats = [{"batch_size": size, "compute_infer": {"count": each, "ns": each * 10}} for size, each in batches.items()]
    return {
        "name": "m",
        "version": "1",
        "last_inference": last,
        "inference_count": count,
        "inference_stats": {"success": {"count": count, "ns": 100 * count}},
        "batch_stats": stats,
        **fields,
    }


def test_memory_is_summed_by_device_and_no_flag_is_a_number() -> None:
    used = [{"type": "GPU", "id": 0, "byte_size": 10}, {"type": "CPU", "id": 0, "byte_size": 1}]
    response = {"0": {"success": {"count": 1, "ns": 2}}}
    answers = [
        {"model_stats": [model_stats(1, {}, memory_usage=used, response_stats=response, flag=True)]},
        {"model_stats": [model_stats(1, {}, memory_usage=used[:1], response_stats={**response, "1": {}}, flag=True)]},
    ]
    (summed,) = questions.statistics(answers)["model_stats"]
    assert {each["type"]: each["byte_size"] for each in summed["memory_usage"]} == {"GPU": 20, "CPU": 1}
    assert summed["response_stats"] == {"0": {"success": {"count": 2, "ns": 4}}, "1": {}}
    assert summed["flag"] is True


def test_a_counter_stays_within_what_triton_can_say() -> None:
    answers = [{"model_stats": [model_stats(2**64 - 1, {})]}] * 2
    assert questions.statistics(answers)["model_stats"][0]["inference_count"] == 2**64 - 1


@given(st.lists(st.dictionaries(st.integers(1, 8), st.integers(0, 10**6)), min_size=1, max_size=5), st.randoms())
def test_the_order_of_workers_changes_no_sum(workers: list[dict[int, int]], random: Any) -> None:
    answers = [{"model_stats": [model_stats(sum(batches.values()), batches)]} for batches in workers]
    shuffled = random.sample(answers, len(answers))
    assert questions.statistics(answers) == questions.statistics(shuffled)
    (summed,) = questions.statistics(answers)["model_stats"]
    assert summed["inference_count"] == sum(itertools.chain(*(batches.values() for batches in workers)))


def entry(name: str, version: str = "1", state: str = "READY") -> dict[str, str]:
    return {"name": name, "version": version, "state": state}


def test_the_index_is_the_union_in_the_worst_state() -> None:
    one = [entry("a"), entry("b"), entry("c", state="LOADING")]
    other = [entry("a", "2"), entry("b", state="UNAVAILABLE"), entry("c"), entry("d", state="UNLOADING")]
    merged = questions.index([one, other])
    assert merged == [
        entry("a"),
        entry("b", state="UNAVAILABLE"),
        entry("c", state="LOADING"),
        entry("a", "2"),
        entry("d", state="UNLOADING"),
    ]
    assert questions.index([one, other], ready=True) == [entry("a"), entry("a", "2")]


def test_what_a_worker_never_loaded_is_listed_where_no_other_did() -> None:
    assert questions.index([[{"name": "a"}, {"name": "b"}], [entry("a")]]) == [{"name": "b"}, entry("a")]


def test_metadata_has_the_versions_that_any_worker_has() -> None:
    one, other = {"name": "m", "versions": ["1", "10"]}, {"name": "m", "versions": ["2"]}
    assert questions.metadata([one, other]) == {"name": "m", "versions": ["1", "2", "10"]}


def test_workers_agree_but_for_what_differs_by_right() -> None:
    one, other = {"name": "a", "version": "2.51"}, {"name": "b", "version": "2.51"}
    assert not questions.agree([one, other])
    assert questions.agree([one, other], frozenset({"name"}))
    assert questions.agree([one])
