from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from balancer.fleet_api import questions


def model(count: int, batches: dict[int, int], last: int = 0, **fields: Any) -> dict[str, Any]:
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
        {"model_stats": [model(1, {}, memory_usage=used, response_stats=response, flag=True)]},
        {"model_stats": [model(1, {}, memory_usage=used[:1], response_stats={**response, "1": {}}, flag=True)]},
    ]
    (summed,) = questions.statistics(answers)["model_stats"]
    assert {each["type"]: each["byte_size"] for each in summed["memory_usage"]} == {"GPU": 20, "CPU": 1}
    assert summed["response_stats"] == {"0": {"success": {"count": 2, "ns": 4}}, "1": {}}
    assert summed["flag"] is True


def test_a_counter_stays_within_what_triton_can_say() -> None:
    answers = [{"model_stats": [model(2**64 - 1, {})]}] * 2
    assert questions.statistics(answers)["model_stats"][0]["inference_count"] == 2**64 - 1


@given(st.lists(st.dictionaries(st.integers(1, 8), st.integers(0, 10**6)), min_size=1, max_size=5), st.randoms())
def test_the_order_of_workers_changes_no_sum(workers: list[dict[int, int]], random: Any) -> None:
    answers = [{"model_stats": [model(sum(batches.values()), batches)]} for batches in workers]
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
