"""One answer of many, where workers are not ready, disagree or are silent; the workers are functions here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from support.fleets import make_router

from balancer.config.config import from_mapping
from balancer.discovery.workers import WorkerSpec
from balancer.fleet_api.fan_out import FailedError, Failure, FanOut, FleetCallCounts
from balancer.fleet_api.questions import Members, Question, Questions
from policies.round_robin import RoundRobin

AWAY = FailedError(Failure(grpc.StatusCode.UNAVAILABLE, "not there"))


class Fleet:
    """Three workers, each of which answers as the test says."""

    def __init__(self, **fleet: Any) -> None:
        members = Members(make_router(3, RoundRobin()))
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
