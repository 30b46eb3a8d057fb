"""Discovery over a real API server: pods that come and go, an API that is away, and what the role allows."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.balancer_alone import BalancerAlone
from support.chart import of_kind, role
from support.kubernetes_api import KubernetesApi, Namespace
from support.pods import Followed, until_stopped
from support.running import running
from support.waiting import eventually

from balancer.discovery.cluster import api as pods_api
from balancer.discovery.cluster.api import ClusterAccess
from balancer.discovery.inference.pods import PodSource
from balancer.discovery.pods.watch import PodsWanted
from balancer.discovery.workers import WorkerSpec

pytestmark = pytest.mark.integration

ACCOUNT = "fleet-balancer"
"""That the chart makes for the balancer."""


class Fleet(Followed[dict[str, bool]]):
    """By name whether a worker drains."""

    def __init__(self, access: ClusterAccess, **wanted: Any) -> None:
        super().__init__(PodSource(PodsWanted(access, **wanted)), self._shown)
        self.counts = self.source.counts
        self.endpoints: dict[str, str] = {}

    def _shown(self, workers: list[WorkerSpec]) -> dict[str, bool]:
        self.endpoints = {worker.name: worker.grpc_endpoint for worker in workers}
        return {worker.name: worker.draining for worker in workers}


@contextlib.asynccontextmanager
async def following(access: ClusterAccess, **wanted: Any) -> AsyncIterator[Fleet]:
    fleet = Fleet(access, **wanted)
    async with until_stopped(fleet.follow(), fleet.stop):
        yield fleet


@pytest.fixture
async def access(namespace: Namespace, tmp_path: Path) -> ClusterAccess:
    """As the chart's service account."""
    await namespace.create_all(role(namespace.name))
    file = await namespace.kubeconfig(tmp_path / "kubeconfig", await namespace.token(ACCOUNT))
    return ClusterAccess("app=triton", kubeconfig=file)


async def test_pods_come_become_ready_change_and_go(namespace: Namespace, access: ClusterAccess) -> None:
    async with following(access) as fleet:
        await fleet.until({})
        await namespace.create("a", last=1)
        await namespace.status("a", last=1, ready=False)
        await namespace.ready("b", last=2)
        await fleet.until({"b": False})
        await namespace.status("a", last=1)
        await fleet.until({"a": False, "b": False})
        await namespace.status("b", last=2, ready=False)
        await fleet.until({"a": False, "b": True})
        await namespace.status("b", last=2)
        await fleet.until({"a": False, "b": False})
        await namespace.label("b", app="other")
        await fleet.until({"a": False})
        await namespace.label("b", app="triton")
        await fleet.until({"a": False, "b": False})
        await namespace.annotate("b", draining="true")
        await fleet.until({"a": False, "b": True})
        await namespace.annotate("b", draining=None)
        await fleet.until({"a": False, "b": False})
        await namespace.delete("a")
        await fleet.until({"a": True, "b": False})
        await namespace.status("a", last=1, ready=False)
        await namespace.end("a")
        await fleet.until({"b": False})
        assert fleet.counts.lists == {"start": 1}
        assert fleet.counts.failures == {}


async def test_300_pods_churning(namespace: Namespace, access: ClusterAccess) -> None:
    expected: dict[str, bool] = {}
    lives_of: dict[str, int] = {}
    chance = random.Random(3)

    async def live(number: int) -> None:
        """One pod's life, up to where it is to stand at the end."""
        name, address = f"pod-{number}", f"10.1.{number // 200}.{number % 200 + 1}"
        await namespace.create(name, address=address)
        steps: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: namespace.status(name, address=address),
            lambda: namespace.status(name, address=address, ready=False),
            lambda: namespace.status(name, address=address),
            lambda: namespace.delete(name),
            lambda: namespace.end(name),
        ]
        lived = chance.randrange(len(steps) + 1)
        for step in steps[:lived]:
            await step()
        lives_of[name] = lived
        if lived in (1, 2, 3, 4):
            expected[name] = lived in (2, 4)

    places = asyncio.Semaphore(8)

    async def in_turn(number: int) -> None:
        async with places:
            await live(number)

    async with following(access) as fleet:
        async with asyncio.TaskGroup() as lives:
            for number in range(300):
                lives.create_task(in_turn(number))
        await fleet.until(expected)
        assert fleet.counts.lists == {"start": 1}
    async with following(access) as fleet:
        # Who comes later knows of no pod that it was ready once and is not now.
        unready = {name for name, lived in lives_of.items() if lived == 2}
        await fleet.until({name: drains for name, drains in expected.items() if name not in unready})


async def test_the_api_server_dies_and_returns_with_a_history_that_is_gone(
    kubernetes: KubernetesApi, namespace: Namespace, access: ClusterAccess, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(("a", "b", "c"), 1):
        await namespace.ready(name, last=number)
    async with following(access) as fleet:
        await fleet.until({"a": False, "b": False, "c": False})
        await kubernetes.kill()
        await eventually(lambda: not fleet.counts.connected, "it is told that the API is away")
        # Nobody will be told of this pod's end.
        await kubernetes.forget_in_etcd(f"/registry/pods/{namespace.name}/b")
        assert fleet.listed[-1] == {"a": False, "b": False, "c": False}, "the last known stay"
        await kubernetes.restart()
        await fleet.until({"a": False, "c": False})
        assert fleet.counts.failures["expired"] >= 1
        assert fleet.counts.lists["expired"] >= 1
        await namespace.delete("c")
        await fleet.until({"a": False, "c": True})
        assert fleet.counts.connected
    away = "discovery.kubernetes: no word from the API, the workers known last stay; trying again: "
    logged = [message for message in caplog.messages if message.startswith(away)]
    # A server that has just started may refuse everybody, until it has read all roles.
    assert sum("403" not in message for message in logged) == 1
    assert sum("403" in message for message in logged) <= 1


async def test_the_role_allows_pods_to_be_read_and_nothing_else(
    kubernetes: KubernetesApi, namespace: Namespace, access: ClusterAccess
) -> None:
    await namespace.ready("a")
    token = await namespace.token(ACCOUNT)

    async def status(method: str, path: str, body: Any = None) -> int:
        return (await kubernetes.ask(method, path, body, token=token))[0]

    here = f"/api/v1/namespaces/{namespace.name}"
    assert await status("GET", f"{here}/pods") == 200
    assert await status("GET", f"{here}/pods/a") == 200
    refused = [
        *(("GET", f"{here}/{kind}") for kind in ("secrets", "configmaps", "services", "events", "serviceaccounts")),
        *(("GET", path) for path in ("/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces", f"{here}/pods/a/log")),
        ("GET", "/api/v1/namespaces/kube-system/pods"),
        ("POST", f"{here}/pods"),
        ("POST", f"{here}/pods/a/exec"),
        ("POST", f"{here}/pods/a/eviction"),
        ("PATCH", f"{here}/pods/a"),
        ("DELETE", f"{here}/pods/a"),
        ("DELETE", f"{here}/pods"),
    ]
    found = {(method, path): await status(method, path) for method, path in refused}
    assert found == dict.fromkeys(refused, 403)
    review = {"spec": {"namespace": namespace.name}}
    answer = await kubernetes.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review, token=token)
    rules = answer[1]["status"]["resourceRules"]
    own = [rule for rule in rules if "authorization.k8s.io" not in rule["apiGroups"]]
    assert own == [{"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]}]


async def test_without_the_role_the_log_says_what_to_bind_and_the_pods_come_once_it_is(
    namespace: Namespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = role(namespace.name)
    bindings = of_kind(wanted, "RoleBinding")
    await namespace.create_all(each for each in wanted if each not in bindings)
    await namespace.ready("a")
    file = await namespace.kubeconfig(tmp_path / "kubeconfig", await namespace.token(ACCOUNT))
    async with following(ClusterAccess("app=triton", kubeconfig=file)) as fleet:
        await eventually(lambda: fleet.counts.failures["forbidden"], "it is refused")
        assert fleet.listed == []
        await namespace.create_all(bindings)
        await fleet.until({"a": False})
    assert (
        "discovery.kubernetes: no word from the API, there is no list of workers yet; trying again: 403: may not list "
        f"and watch pods in namespace {namespace.name}; bind a role with get, list and watch on pods "
        "(templates/rbac.yaml of deploy/chart)" in caplog.messages
    )


async def test_in_a_pod_the_service_account_is_taken_and_its_token_may_rotate(
    kubernetes: KubernetesApi,
    namespace: Namespace,
    access: ClusterAccess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kubernetes.config import incluster_config  # noqa: PLC0415  # an optional part

    await namespace.ready("a")
    (tmp_path / "namespace").write_text(namespace.name)
    (tmp_path / "token").write_text("expired")
    monkeypatch.setattr(pods_api, "NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(kubernetes.certificate))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kubernetes.port))
    async with following(ClusterAccess("app=triton")) as fleet:
        await eventually(lambda: fleet.counts.failures["unauthorized"], "the token is refused")
        (tmp_path / "token").write_text(await namespace.token(ACCOUNT))
        await fleet.until({"a": False})


async def test_a_balancer_that_serves_knows_the_pods_and_ends_though_it_watches(
    namespace: Namespace, access: ClusterAccess, tmp_path: Path
) -> None:
    await namespace.ready("a")
    section = {"label_selector": "app=triton", "kubeconfig": str(access.kubeconfig)}
    balancer = BalancerAlone(tmp_path, discovery={"kubernetes": section})
    async with running(balancer):
        assert (await balancer.worker())["worker"] == "a"
        assert await balancer.metric("balancer_kubernetes_connected") == 1
        assert await balancer.metric("balancer_kubernetes_pods", state="ready") == 1
        assert await balancer.metric("balancer_kubernetes_lists_total", why="start") == 1
        await namespace.delete("a")
        await eventually(balancer.worker, "the pod drains", until=lambda worker: worker["draining"])
        await namespace.end("a")
        await eventually(balancer.worker, "the pod is gone", until=lambda worker: worker is None)
