"""The watch of a pool and the one of its pods, over an API that does as the test says."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.fake_kubernetes_api import FakeApi
from support.inference import pool
from support.pods import Followed, pod, until_stopped
from support.waiting import eventually

from balancer.discovery.cluster import watch as watching
from balancer.discovery.cluster.api import ApiError, ClusterAccess
from balancer.discovery.inference.pods import PodSource
from balancer.discovery.inference.pool import POOLS
from balancer.discovery.pods.watch import PodsWanted


class Cluster(Followed[dict[str, str]]):
    """One API for the pool, and one for the pods of each selector."""

    def __init__(self) -> None:
        self.pool = FakeApi()
        self.pods = {"app=a": FakeApi(), "app=b": FakeApi()}
        self.accesses: list[ClusterAccess] = []
        wanted = PodsWanted(ClusterAccess("", "here"), pool="triton")
        source = PodSource(wanted, self._connect)  # type: ignore[arg-type]  # a fake API
        super().__init__(source, lambda workers: {worker.name: worker.grpc_endpoint for worker in workers})

    def _connect(self, access: ClusterAccess) -> FakeApi:
        self.accesses.append(access)
        if access.resource == POOLS:
            assert (access.namespace, access.name, access.label_selector) == ("here", "triton", "")
            return self.pool
        return self.pods[access.label_selector]

    def says(self, kind: str, **more: Any) -> None:
        self.pool.tell_of(kind, versioned(pool("triton", **more)))


def versioned(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "metadata": {**found["metadata"], "resourceVersion": "2"}}


@contextlib.asynccontextmanager
async def followed() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    async with until_stopped(cluster.follow(), cluster.stop):
        yield cluster


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(watching, "_LONGEST_WAIT_S", 0.01)


async def test_other_pods_take_over_in_one_step_once_they_are_listed() -> None:
    async with followed() as cluster:
        cluster.pool.list(pool(labels={"app": "a"}))
        cluster.pods["app=a"].list(pod("a", 1))
        await cluster.until({"a": "10.0.0.1:8001"})
        cluster.says("MODIFIED", labels={"app": "b"})
        await eventually(cluster.pods["app=a"].cuts.is_set, "the former pods are no longer followed")
        assert cluster.listed == [{"a": "10.0.0.1:8001"}]
        cluster.pods["app=b"].list(pod("b", 2))
        await cluster.until({"b": "10.0.0.2:8001"})
        assert cluster.listed == [{"a": "10.0.0.1:8001"}, {"b": "10.0.0.2:8001"}]
        assert cluster.source.counts.lists == {"start": 1, "selector": 1}
        assert cluster.source.counts.failures == {}
        assert cluster.source.pool_counts is not None
        assert cluster.source.pool_counts.changes == 2
        cluster.pods["app=b"].tell("MODIFIED", "b", 3)
        await cluster.until({"b": "10.0.0.3:8001"})


async def test_a_selector_is_followed_though_the_api_refuses_the_one_before() -> None:
    async with followed() as cluster:
        cluster.pool.list(pool(labels={"app": "a"}))
        cluster.pods["app=a"].lists.put(ApiError("server", "no"))
        await eventually(lambda: cluster.source.counts.failures, "it fails")
        cluster.says("MODIFIED", labels={"app": "b"})
        cluster.pods["app=b"].list(pod("b", 2))
        await cluster.until({"b": "10.0.0.2:8001"})


async def test_what_the_pool_says_of_ports_holds_whatever_pods_say() -> None:
    async with followed() as cluster:
        cluster.pool.list(pool("triton", 8001, labels={"app": "a"}))
        settings = {"annotations": {"balancer/grpc-port": "7001"}, "ports": {"grpc": 6001}}
        cluster.pods["app=a"].list(pod("a", 1, **settings))
        await cluster.until({"a": "10.0.0.1:8001"})


async def test_a_pool_that_is_not_there_or_no_use_leaves_the_last_in_force(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with followed() as cluster:
        cluster.pool.list()
        counts = cluster.source.pool_counts
        assert counts is not None
        await eventually(lambda: counts.invalid_values == {"inference_pool": 1}, "it is missed")
        assert (counts.connected, counts.is_followed, cluster.accesses[1:]) == (True, False, [])
        cluster.says("ADDED", labels={"app": "a"})
        cluster.pods["app=a"].list(pod("a", 1))
        await cluster.until({"a": "10.0.0.1:8001"})
        assert counts.is_followed
        for _ in range(3):
            cluster.says("MODIFIED", targetPorts=[])
        await eventually(lambda: counts.invalid_values == {"inference_pool": 2}, "it is refused")
        cluster.says("DELETED", labels={"app": "a"})
        await eventually(lambda: counts.invalid_values == {"inference_pool": 3}, "it is missed again")
        assert not counts.is_followed
        # Its pods are followed meanwhile.
        cluster.pods["app=a"].tell("MODIFIED", "a", 4)
        await cluster.until({"a": "10.0.0.4:8001"})
        cluster.says("ADDED", labels={"app": "a"})
        await eventually(lambda: counts.is_followed, "it is there again")
        assert counts.changes == 1
    logged = [message for message in caplog.messages if "Pool triton" in message]
    stays = "until then the pool known last stays in force"
    assert [message.removeprefix("discovery.kubernetes: ") for message in logged] == [
        "InferencePool triton: it is not there; create it, or name another in inference_pool; until then there is no "
        "pool yet",
        "the pods of InferencePool triton are those with app=a",
        f"InferencePool triton: targetPorts: [] names no port; name Triton's gRPC or HTTP port; {stays}",
        f"InferencePool triton: it was deleted; create it anew, or name another in inference_pool; {stays}",
    ]


async def test_it_ends_before_there_is_a_pool() -> None:
    async with followed() as cluster:
        await eventually(lambda: cluster.accesses, "the pool is asked for")
    assert cluster.pool.cuts.is_set()
