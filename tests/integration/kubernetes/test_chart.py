"""The chart and a real API server (1.20): it takes every object whole, and helm installs, upgrades and uninstalls."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart import CHART, EXAMPLES, OPERATORS, RELEASE, Object, helm, named, objects, of_kind, rendered
from support.kubernetes_api import KubernetesApi, Namespace, definition
from support.pods import until_stopped
from support.waiting import eventually

from balancer.discovery.cluster.api import ClusterAccess
from balancer.discovery.inference.pods import PodSource
from balancer.discovery.pods.watch import PodsWanted
from balancer.discovery.workers import WorkerSpec

pytestmark = pytest.mark.integration

CRDS = {
    "cert-manager.io/v1": ["Certificate"],
    "monitoring.coreos.com/v1": ["ServiceMonitor", "PrometheusRule"],
    "keda.sh/v1alpha1": ["ScaledObject"],
}
"""What operators bring, here without their schemas: a server that has these, knows the kinds."""


class Helm:
    """The real helm, at the real server, as cluster-admin."""

    def __init__(self, namespace: Namespace) -> None:
        self._end = ("--namespace", namespace.name, "--kubeconfig", str(namespace.api.directory / "kubeconfig"))

    def __call__(self, *arguments: str) -> str:
        done = helm(*arguments, *self._end)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rendered(self, example: str) -> list[Object]:
        """What it would install: by the kinds and versions that the server knows."""
        text = self("template", RELEASE, str(CHART), "--validate", "--values", str(EXAMPLES[example]))
        return objects(text)


def lost(sent: Any, kept: Any, where: str = "") -> Iterable[str]:
    """What of an object the server did not keep: it drops, without a word, what its schema does not have."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            # An empty list or mapping says no more than its absence.
            if value not in (None, {}, []):
                yield from lost(value, kept.get(key), f"{where}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for number, (one, other) in enumerate(zip(sent, kept, strict=True)):
            yield from lost(one, other, f"{where}[{number}]")
    elif sent != kept and not same_quantity(sent, kept):
        yield f"{where}: {sent!r}, kept {kept!r}"


def same_quantity(one: Any, other: Any) -> bool:
    """The server writes 0.25 as 250m."""
    from kubernetes.utils.quantity import parse_quantity  # noqa: PLC0415  # an optional part

    try:
        return bool(parse_quantity(one) == parse_quantity(other))
    except (ValueError, TypeError):
        return False


async def take(kubernetes: KubernetesApi, namespace: str, found: Iterable[Object]) -> None:
    """A trial creation of each: refused where it does not fit, and nothing of it is lost."""
    for each in found:
        where = each["metadata"].get("namespace", namespace)
        path = await kubernetes.collection(each["apiVersion"], each["kind"], where)
        status, answer = await kubernetes.ask("POST", f"{path}?dryRun=All", each)
        name = f"{each['kind']} {each['metadata']['name']}"
        assert status == 201, (name, answer)
        assert list(lost(each, answer)) == [], name


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_server_takes_every_object_and_keeps_all_of_it(kubernetes: KubernetesApi, name: str) -> None:
    namespace = await kubernetes.namespace(f"chart-{name}")
    # Where the Tritons of an example are; there already, after another test.
    await kubernetes.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "inference"}})
    found = Helm(namespace).rendered(name)
    kinds = {"Deployment", "ConfigMap", "Role", "NetworkPolicy", "PodDisruptionBudget"}
    assert kinds <= {each["kind"] for each in found}
    await take(kubernetes, namespace.name, found)


async def test_a_field_that_the_server_does_not_know_would_be_noticed(kubernetes: KubernetesApi) -> None:
    namespace = await kubernetes.namespace("chart-unknown-field")
    (gateway,) = of_kind(rendered(EXAMPLES["try"]), "Deployment")
    gateway["spec"]["template"]["spec"]["terminationGraceSeconds"] = 3
    with pytest.raises(AssertionError, match="terminationGraceSeconds"):
        await take(kubernetes, namespace.name, [gateway])


async def test_discovery_reads_of_a_pod_what_the_chart_says_of_it(kubernetes: KubernetesApi, tmp_path: Path) -> None:
    """As the chart's service account, by the chart's selector, of a pod as its StatefulSet makes it."""
    namespace = await kubernetes.namespace("chart-pod")
    found = Helm(namespace).rendered("fleet")
    await namespace.create_all(each for each in found if each["kind"] in {"ServiceAccount", "Role", "RoleBinding"})
    pool = named(found, "StatefulSet", "fleet-balancer-triton-l4")
    template = pool["spec"]["template"]
    metadata = {**template["metadata"], "name": "fleet-balancer-triton-l4-0"}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] | {"nodeName": "node-0"}}
    await namespace.create_all([made])
    await namespace.status(metadata["name"], address="10.0.0.7")
    config = yaml.safe_load(named(found, "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"])
    file = await namespace.kubeconfig(tmp_path / "kubeconfig", await namespace.token("fleet-balancer"))
    wanted = config["discovery"]["kubernetes"]
    source = PodSource(PodsWanted(ClusterAccess(wanted["label_selector"], wanted["namespace"], kubeconfig=file)))
    stop = asyncio.Event()
    seen: list[WorkerSpec] = []

    async def follow() -> None:
        async for workers in source.updates(stop):
            seen[:] = workers

    async with until_stopped(follow(), stop):
        await eventually(lambda: seen, "the pod is listed")
    (worker,) = seen
    assert (worker.name, worker.grpc_endpoint) == ("fleet-balancer-triton-l4-0", "10.0.0.7:8001")
    assert (worker.weight, worker.device, worker.memory_bytes) == (0.4, "L4", 24 * 2**30)
    assert source.counts.invalid_values == {}


async def get(namespace: Namespace, version: str, kind: str, name: str) -> Object:
    path = await namespace.api.collection(version, kind, namespace.name)
    return dict(await namespace.api.do("GET", f"{path}/{name}"))


async def counted(namespace: Namespace) -> dict[str, int]:
    """Objects by kind, of all kinds that the chart has anywhere."""
    found: dict[str, int] = {}
    for name in EXAMPLES:
        for version, kind in {(each["apiVersion"], each["kind"]) for each in Helm(namespace).rendered(name)}:
            path = await namespace.api.collection(version, kind, namespace.name)
            found[kind] = len((await namespace.api.do("GET", path))["items"])
    return found


async def test_it_installs_upgrades_and_goes(kubernetes: KubernetesApi) -> None:
    namespace = await kubernetes.namespace("chart-life")
    before = await counted(namespace)
    run = Helm(namespace)
    chart, values = str(CHART), ("--values", str(EXAMPLES["try"]))
    notes = run("install", RELEASE, chart, *values)
    assert f"fleet-balancer.{namespace.name}.svc:8080" in notes
    budget = await get(namespace, "policy/v1beta1", "PodDisruptionBudget", "fleet-balancer")
    assert budget["spec"]["maxUnavailable"] == 1
    first = await get(namespace, "apps/v1", "Deployment", "fleet-balancer")
    # Swapped while it runs: the ConfigMap changes, the pods do not.
    run("upgrade", RELEASE, chart, *values, "--set", "config.policy.name=wlpr")
    held = await get(namespace, "v1", "ConfigMap", "fleet-balancer-config")
    assert yaml.safe_load(held["data"]["balancer.yaml"])["policy"] == {"name": "wlpr"}
    second = await get(namespace, "apps/v1", "Deployment", "fleet-balancer")
    assert second["metadata"]["generation"] == first["metadata"]["generation"]
    # Not taken over by a running balancer: the pods are replaced.
    run("upgrade", RELEASE, chart, *values, "--set", "gateway.ports.reports=9300")
    third = await get(namespace, "apps/v1", "Deployment", "fleet-balancer")
    assert third["metadata"]["generation"] > second["metadata"]["generation"]
    # Every other example over what is there, one after the other: no field that may not change is changed.
    for name in ("fleet", "secrets", "try"):
        run("upgrade", RELEASE, chart, "--values", str(EXAMPLES[name]))
    run("rollback", RELEASE, "1")
    assert (await get(namespace, "v1", "Service", "fleet-balancer"))["spec"]["ports"][0]["port"] == 8080
    run("uninstall", RELEASE)
    assert await counted(namespace) == before


async def test_a_refused_value_changes_nothing(kubernetes: KubernetesApi) -> None:
    namespace = await kubernetes.namespace("chart-refused")
    run = Helm(namespace)
    run("install", RELEASE, str(CHART), "--values", str(EXAMPLES["try"]))
    end = ("--namespace", namespace.name, "--kubeconfig", str(kubernetes.directory / "kubeconfig"))
    before = await get(namespace, "apps/v1", "Deployment", "fleet-balancer")
    done = helm("upgrade", RELEASE, str(CHART), "--values", str(EXAMPLES["try"]), "--set", "gateway.replicas=0", *end)
    assert (done.returncode, "gateway.replicas: Must be greater than or equal to 1" in done.stderr) == (1, True)
    after = await get(namespace, "apps/v1", "Deployment", "fleet-balancer")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_who_has_ids_executed_once_by_several_pods_is_shown(kubernetes: KubernetesApi) -> None:
    run = Helm(await kubernetes.namespace("chart-notes"))
    once = ("--set-json", 'config.models={"m":{"proxy":{"once_s":60}}}', "--values", str(EXAMPLES["proxy"]))

    def notes(replicas: int) -> str:
        dry_run = ("install", RELEASE, str(CHART), "--dry-run", *once)
        return run(*dry_run, "--set", f"gateway.replicas={replicas}").partition("NOTES:")[2]

    assert "config.models.m.proxy.once_s: each of the 3 gateway pods" in notes(3)
    assert "once_s" not in notes(1)


async def test_what_operators_bring_is_used_once_it_is_there(kubernetes: KubernetesApi) -> None:
    assert {*CRDS} == {*OPERATORS}
    namespace = await kubernetes.namespace("chart-operators")
    run = Helm(namespace)
    values = (
        "--values",
        str(EXAMPLES["fleet"]),
        "--set",
        "autoscaling.kind=keda",
        "--set",
        "certificates.csiDriver=false",
    )
    notes = run("install", RELEASE, str(CHART), *values)
    assert "The cluster has no cert-manager" in notes
    assert "The cluster has no KEDA" in notes
    made = [definition(version, kind) for version, kinds in CRDS.items() for kind in kinds]
    try:
        await kubernetes.define(*made)
        notes = run("upgrade", RELEASE, str(CHART), *values)
        assert "The cluster has no" not in notes
        for version, kinds in CRDS.items():
            for kind in kinds:
                path = await kubernetes.collection(version, kind, namespace.name)
                assert (await kubernetes.do("GET", path))["items"], kind
        run("uninstall", RELEASE)
    finally:
        # Until then helm takes them for there, and fails with the kinds that have gone.
        await kubernetes.forget(*made)
