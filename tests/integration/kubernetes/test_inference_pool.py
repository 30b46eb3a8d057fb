"""Pods by an InferencePool, priorities by its objectives: over a real API server, as the chart's service account."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc
from support.balancer_alone import BalancerAlone
from support.chart import role
from support.inference import KINDS, OBJECTIVES, POOLS, objective, pool
from support.kubernetes_api import KubernetesApi, Namespace
from support.pods import Followed, until_stopped
from support.running import running
from support.waiting import eventually

from balancer.discovery.cluster.api import ClusterAccess
from balancer.discovery.inference.pods import PodSource
from balancer.discovery.pods.watch import PodsWanted
from balancer.stack.process import free_ports

pytestmark = pytest.mark.integration

ACCOUNT = "fleet-balancer"
"""That the chart makes for the balancer."""
_MERGE = "application/merge-patch+json"
_AWAY = "discovery.kubernetes: no word from the API, there is no pool yet; trying again: "


@pytest.fixture
async def bare(kubernetes: KubernetesApi) -> AsyncIterator[KubernetesApi]:
    """Without the extension's kinds; they are gone again after the test."""
    try:
        yield kubernetes
    finally:
        await kubernetes.forget(*KINDS)


@pytest.fixture
async def extended(bare: KubernetesApi) -> KubernetesApi:
    await bare.define(*KINDS)
    return bare


@pytest.fixture
async def namespace(bare: KubernetesApi, namespace: Namespace) -> Namespace:
    """Of a cluster that is bare again afterwards."""
    assert namespace.api is bare
    return namespace


@pytest.fixture
async def access(namespace: Namespace, tmp_path: Path) -> ClusterAccess:
    await namespace.create_all(role(namespace.name, "triton"))
    file = await namespace.kubeconfig(tmp_path / "kubeconfig", await namespace.token(ACCOUNT))
    return ClusterAccess("", kubeconfig=file)


async def patch(namespace: Namespace, found: dict[str, Any]) -> None:
    """Another content of an object that is there."""
    path = await namespace.api.collection(found["apiVersion"], found["kind"], namespace.name)
    await namespace.api.do("PATCH", f"{path}/{found['metadata']['name']}", {"spec": found["spec"]}, _MERGE)


async def delete(namespace: Namespace, found: dict[str, Any]) -> None:
    path = await namespace.api.collection(found["apiVersion"], found["kind"], namespace.name)
    await namespace.api.do("DELETE", f"{path}/{found['metadata']['name']}")


class Fleet(Followed[dict[str, tuple[str, str]]]):
    """Endpoints by name."""

    def __init__(self, access: ClusterAccess) -> None:
        source = PodSource(PodsWanted(access, pool="triton"))
        super().__init__(source, lambda workers: {w.name: (w.grpc_endpoint, w.http_endpoint) for w in workers})

    async def lists(self, **endpoints: tuple[str, str]) -> None:
        await self.until(endpoints)


@contextlib.asynccontextmanager
async def following(access: ClusterAccess) -> AsyncIterator[Fleet]:
    fleet = Fleet(access)
    async with until_stopped(fleet.follow(), fleet.stop):
        yield fleet


async def test_a_pool_says_which_pods_and_by_which_ports_while_it_changes(
    extended: KubernetesApi, namespace: Namespace, access: ClusterAccess
) -> None:
    gold = {"app": "other", "tier": "gold"}
    await namespace.ready("a", last=1)
    await namespace.ready("b", last=2, labels=gold)
    await namespace.create_all([pool("triton", 8001), pool("not-ours", 9999, labels={"app": "other"})])
    async with following(access) as fleet:
        counts = fleet.source.pool_counts
        assert counts is not None
        await fleet.lists(a=("10.0.0.1:8001", "10.0.0.1:8000"))
        await patch(namespace, pool("triton", 8001, labels=gold))
        await fleet.lists(b=("10.0.0.2:8001", "10.0.0.2:8000"))
        await patch(namespace, pool("triton", 9001, labels=gold, appProtocol="kubernetes.io/h2c"))
        await fleet.lists(b=("10.0.0.2:9001", "10.0.0.2:8000"))
        assert len(fleet.listed) == 3, "no worker is taken away in between"
        await namespace.ready("c", last=3, labels=gold)
        await fleet.lists(b=("10.0.0.2:9001", "10.0.0.2:8000"), c=("10.0.0.3:9001", "10.0.0.3:8000"))
        assert fleet.source.counts.lists == {"start": 1, "selector": 2}
        assert fleet.source.counts.failures + counts.failures == {}
        assert counts.changes == 3


async def test_what_is_missing_or_no_use_is_logged_and_awaited(
    bare: KubernetesApi, namespace: Namespace, access: ClusterAccess, caplog: pytest.LogCaptureFixture
) -> None:
    await namespace.ready("a", last=1)
    async with following(access) as fleet:
        counts = fleet.source.pool_counts
        assert counts is not None
        await eventually(lambda: counts.failures["absent"], "the kind is missed")
        await bare.define(*KINDS)
        await eventually(lambda: counts.invalid_values["inference_pool"] == 1, "the pool is missed")
        await namespace.create_all([pool("triton", 8001, 8002)])
        await eventually(lambda: counts.invalid_values["inference_pool"] == 2, "several ports are refused")
        assert fleet.listed == []
        await patch(namespace, pool("triton", 8000, 8001))
        await fleet.lists(a=("10.0.0.1:8001", "10.0.0.1:8000"))
        await delete(namespace, pool("triton"))
        await eventually(lambda: counts.invalid_values["inference_pool"] == 3, "the pool is missed again")
        await namespace.ready("b", last=2)
        await fleet.lists(a=("10.0.0.1:8001", "10.0.0.1:8000"), b=("10.0.0.2:8001", "10.0.0.2:8000"))
    missing = [message for message in caplog.messages if message.startswith(_AWAY)]
    assert (
        f"{_AWAY}404: the cluster does not know inferencepools.inference.networking.k8s.io in version v1; install the "
        "Gateway API Inference Extension's kinds, or name pods by label_selector in place of inference_pool" in missing
    )
    invalid = [message.split(": ", 2)[2] for message in caplog.messages if ": InferencePool triton: " in message]
    assert [text.partition(";")[0] for text in invalid] == [
        "it is not there",
        "targetPorts: 8001, 8002: a pod is one worker",
        "it was deleted",
    ]


async def test_the_role_allows_a_pool_only_where_the_chart_has_one(
    extended: KubernetesApi, namespace: Namespace, access: ClusterAccess
) -> None:
    await namespace.create_all([pool(), objective("batch", -1)])
    token = await namespace.token(ACCOUNT)
    paths = [
        await extended.collection(version, kind, namespace.name)
        for version, kind in ((POOLS, "InferencePool"), (OBJECTIVES, "InferenceObjective"))
    ]
    for path, name in zip(paths, ("triton", "batch"), strict=True):
        assert (await extended.ask("GET", path, token=token))[0] == 200
        assert (await extended.ask("PATCH", f"{path}/{name}", {}, _MERGE, token=token))[0] == 403
        assert (await extended.ask("PATCH", f"{path}/{name}/status", {}, _MERGE, token=token))[0] == 403
        assert (await extended.ask("DELETE", f"{path}/{name}", token=token))[0] == 403
        assert (await extended.ask("GET", path.replace(namespace.name, "default"), token=token))[0] == 403
    plain = await extended.namespace(f"{namespace.name[:50]}-plain")
    await plain.create_all(role(plain.name))
    other = await plain.token(ACCOUNT)
    for path in paths:
        assert (await extended.ask("GET", path.replace(namespace.name, plain.name), token=other))[0] == 403


class Gateway:
    """Asks for picks, as other gateways do."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ext_proc_grpc.ExternalProcessorStub(channel)

    async def ask(self, objective: str) -> int:
        """200: there is a pick, for a request that ends at once; else the status of the refusal."""
        values = {":path": "/v2/models/m/infer", ":method": "POST", "x-gateway-inference-objective": objective}
        request = ext_proc.ProcessingRequest()
        for key, value in values.items():
            request.request_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
        stream = self._stub.Process()
        await stream.write(request)
        response = await stream.read()
        await stream.done_writing()
        return int(response.immediate_response.status.code) or 200


async def test_an_objective_of_the_pool_is_the_priority_of_who_names_it(
    extended: KubernetesApi, namespace: Namespace, access: ClusterAccess, tmp_path: Path
) -> None:
    await namespace.ready("a", last=1)
    await namespace.create_all([pool(), objective("batch", -3), objective("chat", 5), objective("far", -3, of="other")])
    gateways, health = free_ports(2)
    balancer = BalancerAlone(
        tmp_path,
        discovery={"kubernetes": {"inference_pool": "triton", "kubeconfig": str(access.kubeconfig)}},
        listen={"gateways": f"127.0.0.1:{gateways}", "health": f"127.0.0.1:{health}"},
        limits={"sheddable_priority": 100, "sheddable_max_pending_per_worker": 1e-9},
    )
    async with running(balancer):
        await eventually(
            lambda: balancer.metric("balancer_kubernetes_objectives"),
            "the objectives are read",
            until=lambda value: value == 2,
        )
        assert await balancer.metric("balancer_kubernetes_connected") == 1
        assert await balancer.metric("balancer_kubernetes_pool_changes_total") == 1
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateways}") as channel:
            gateway = Gateway(channel)
            # Limits hold from the first pending request on; this one's end is never told.
            assert await gateway.ask("") == 200
            names = ("batch", "chat", "far", "unknown", "")
            assert {name: await gateway.ask(name) for name in names} == dict.fromkeys(names, 200) | {"batch": 429}
            await patch(namespace, objective("batch", 3))
            await eventually(
                lambda: gateway.ask("batch"), "the objective's new priority counts", until=lambda answer: answer == 200
            )
