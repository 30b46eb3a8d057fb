"""When a change of workers is answered; the workers are a function here."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from support.fleets import make_router, model, report
from tritonclient.grpc import service_pb2

from balancer.config.config import from_mapping
from balancer.discovery.workers import WorkerSpec
from balancer.fleet_api import control
from balancer.fleet_api.control import Control
from balancer.fleet_api.fan_out import FanOut, FleetCallCounts
from balancer.fleet_api.questions import Members
from balancer.scheduler.router import Router
from policies.round_robin import RoundRobin

LOAD = service_pb2.RepositoryModelLoadRequest(model_name="new")
DONE = service_pb2.RepositoryModelLoadResponse()


def controlled(router: Router, monkeypatch: pytest.MonkeyPatch) -> Control:
    async def ask(*_: Any) -> Any:
        return DONE

    monkeypatch.setattr(control, "ask", ask)
    members = Members(router)
    members.listed = tuple(
        WorkerSpec(name=f"w{row}", address="127.0.0.1", grpc_port=row + 1, http_port=row + 11) for row in range(2)
    )
    config = from_mapping({"envoy": {"listen": "127.0.0.1:8080"}, "fleet": {"control": {"callers": ["*"]}}})
    channels = cast(Any, None)  # nobody is asked but the function above
    return Control(members, FanOut(), channels, lambda: config, FleetCallCounts(CollectorRegistry()), replays=False)


async def test_a_load_is_answered_once_requests_for_the_model_find_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    router = make_router(2, RoundRobin())
    loading = asyncio.create_task(controlled(router, monkeypatch).change("RepositoryModelLoad", LOAD, "anybody"))
    for row in range(2):
        done, _ = await asyncio.wait([loading], timeout=0.1)
        assert not done
        router.observe(report(f"w{row}", 2, [model(), model("new")]), 0.1)
    assert await loading == DONE


async def test_agents_that_never_report_it_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_SEEN_S", 0.1)
    router = make_router(2, RoundRobin())
    assert await controlled(router, monkeypatch).change("RepositoryModelLoad", LOAD, "anybody") == DONE
