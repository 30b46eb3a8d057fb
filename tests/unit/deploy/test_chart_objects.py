"""The chart's objects fit each other: what one names, another one has."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.chart import (
    EXAMPLES,
    NAMESPACE,
    Object,
    container,
    containers,
    example,
    named,
    of_kind,
    rendered,
    tritons,
    workloads,
)

from balancer.config.config import parse
from balancer.config.overrides import Overrides
from balancer.discovery.cluster.api import PODS
from balancer.discovery.inference.objectives import OBJECTIVES
from balancer.discovery.inference.pool import POOLS
from balancer.discovery.pods.pod import PREFIX, ZONE_LABEL
from balancer.files.yaml_document import read_value

ALL = pytest.mark.parametrize("name", EXAMPLES)
MADE_ELSEWHERE = {
    "kube-root-ca.crt",
    "models",
    "balancer-admin",
    "balancer-clients",
    "balancer-reports",
    "balancer-agents",
    "broker",
}
"""What the examples say is there already, and what every namespace has."""
ZONE_FIELDS = {
    "label": f"metadata.labels['{ZONE_LABEL}']",
    "annotation": f"metadata.annotations['{PREFIX}zone']",
}
"""Where discovery reads where workers stand, and a gateway where it stands itself."""


def labels(workload: Object) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def selected(found: tuple[Object, ...], selector: dict[str, str]) -> list[Object]:
    return [each for each in workloads(found) if selector.items() <= labels(each).items()]


@ALL
def test_selectors_choose_the_pods_that_they_are_for(name: str) -> None:
    found = example(name)
    for workload in workloads(found):
        assert selected(found, workload["spec"]["selector"]["matchLabels"]) == [workload]
        for spread in workload["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert selected(found, spread["labelSelector"]["matchLabels"]) == [workload]
    components = {labels(each)["app.kubernetes.io/component"] for each in workloads(found)}
    for kind, path in (("Service", "selector"), ("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for each in of_kind(found, kind):
            wanted = each["spec"][path]
            chosen = selected(found, wanted.get("matchLabels", wanted))
            assert len({labels(one)["app.kubernetes.io/component"] for one in chosen}) == 1, each["metadata"]["name"]
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        covered = {
            each["spec"].get("podSelector", each["spec"].get("selector"))["matchLabels"]["app.kubernetes.io/component"]
            for each in of_kind(found, kind)
        }
        assert covered == components


@ALL
def test_services_reach_ports_that_containers_have(name: str) -> None:
    found = example(name)
    for service in of_kind(found, "Service"):
        for workload in selected(found, service["spec"]["selector"]):
            ports = {
                port["name"]: port["containerPort"] for each in containers(workload) for port in each.get("ports", ())
            }
            for port in service["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
    for workload in workloads(found):
        numbers = [port["containerPort"] for each in containers(workload) for port in each.get("ports", ())]
        assert len(set(numbers)) == len(numbers), "containers of a pod share its ports"
        for each in containers(workload):
            own = {port["name"] for port in each.get("ports", ())}
            probes = [each[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in each]
            assert {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe} <= own


@ALL
def test_policies_let_through_what_the_parts_say_to_each_other_and_nothing_more(name: str) -> None:
    found = example(name)
    fullname = "fleet-balancer"
    config = yaml.safe_load(named(found, "ConfigMap", f"{fullname}-config")["data"]["balancer.yaml"])
    port = {
        key: int(address.rpartition(":")[2])
        for key, address in config["listen"].items()
        if ":" in address and "unix" not in address
    }
    processes = range(config["processes"])
    gateway = named(found, "NetworkPolicy", fullname)["spec"]
    open_to = [sorted(each["port"] for each in rule["ports"]) for rule in gateway["ingress"]]
    picks = [open_to.pop(2)] if "gateways" in port else []
    assert picks == [[port["gateways"], port["health"]] for _ in picks]
    if topics := [each for each in workloads(found) if each["metadata"]["name"] == f"{fullname}-topic-ingress"]:
        assert open_to.pop(1) == sorted([port["admin"], *open_to[0]])
        own = named(found, "NetworkPolicy", topics[0]["metadata"]["name"])["spec"]
        assert sorted(each["port"] for each in own["egress"][0]["ports"]) == sorted([port["admin"], *open_to[0]])
        assert [each["port"] for each in own["egress"][-1]["ports"]] == [9092]
    clients, agents, monitoring = open_to
    assert clients == [int(config["envoy"]["listen"].rpartition(":")[2])]
    assert agents == [port["reports"] + process for process in processes]
    assert monitoring == [port["admin"] + process for process in processes]
    if not tritons(found):
        return
    triton = named(found, "NetworkPolicy", f"{fullname}-triton")["spec"]
    served = {each["name"]: each["containerPort"] for each in container(tritons(found)[0], "triton")["ports"]}
    to_triton = sorted(each["port"] for each in gateway["egress"][0]["ports"])
    from_gateway = sorted(each["port"] for each in triton["ingress"][0]["ports"])
    assert to_triton == from_gateway == sorted([served["grpc"], served["http"]])
    assert [each["port"] for each in triton["ingress"][1]["ports"]] == [served["metrics"]]
    assert sorted(each["port"] for each in triton["egress"][0]["ports"]) == agents


@ALL
def test_volumes_are_declared_mounted_and_filled(name: str) -> None:
    found = example(name)
    made = {(each["kind"], each["metadata"]["name"]) for each in found}
    secrets = {each["spec"]["secretName"] for each in of_kind(found, "Certificate")}
    for workload in workloads(found):
        spec = workload["spec"]["template"]["spec"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        mounted = {mount["name"] for each in containers(workload) for mount in each["volumeMounts"]}
        assert mounted == set(volumes)
        for each in containers(workload):
            paths = [mount["mountPath"] for mount in each["volumeMounts"]]
            assert len(set(paths)) == len(paths)
        for secret in (each["secret"]["secretName"] for each in volumes.values() if "secret" in each):
            assert secret in secrets | MADE_ELSEWHERE
        for config in references(list(volumes.values()), "configMap"):
            assert ("ConfigMap", config["name"]) in made or config["name"] in MADE_ELSEWHERE
            held = named(found, "ConfigMap", config["name"]) if config["name"] not in MADE_ELSEWHERE else {}
            keys = {*held.get("data", {}), *held.get("binaryData", {})}
            assert not held or {item["key"] for item in config.get("items", ())} <= keys


def references(part: Any, key: str) -> Iterator[Any]:
    """All that is under a key, wherever it stands."""
    if isinstance(part, dict):
        for name, below in part.items():
            if name == key:
                yield below
            yield from references(below, key)
    elif isinstance(part, list):
        for below in part:
            yield from references(below, key)


@ALL
def test_every_file_that_is_named_lies_where_something_is_mounted(name: str) -> None:
    found = example(name)
    config = yaml.safe_load(named(found, "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"])
    tls_files = (
        [path for key in ("cert_file", "key_file", "client_ca_file") for path in references(config["tls"], key)]
        if "tls" in config
        else []
    )
    envoys = list((config["envoy"].get("tls") or {}).values())
    for workload in workloads(found):
        for each in containers(workload):
            mounts = [mount["mountPath"] for mount in each["volumeMounts"]]
            hooks = each.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
            probes = [word for probe in references(each, "exec") for word in probe["command"]]
            words = " ".join([*each["command"], *each.get("args", ()), *hooks, *probes])
            paths = re.findall(r"(?<![\w./])/(?:etc|run|models)/[\w./-]+", words)
            if each["name"] == "balancer":
                paths += [*tls_files, "/run/balancer/shared", "/run/balancer/envoy.sock"]
            if each["name"] == "envoy":
                paths += [*envoys, "/run/balancer/envoy.sock.0"]
            if each["name"] == "bootstrap":
                paths += [*tls_files, *envoys]
            for path in paths:
                assert any(path.startswith(f"{mount}/") for mount in mounts), (each["name"], path)


@ALL
def test_the_config_is_mounted_as_a_folder_so_that_it_is_swapped(name: str) -> None:
    gateway = of_kind(example(name), "Deployment")[0]
    for part in ("bootstrap", "balancer"):
        (mount,) = (each for each in container(gateway, part)["volumeMounts"] if each["name"] == "config")
        assert "subPath" not in mount
        command = " ".join([*container(gateway, part)["command"], *container(gateway, part).get("args", ())])
        assert f"{mount['mountPath']}/balancer.yaml" in command


@ALL
def test_the_role_is_for_the_account_that_the_balancer_alone_has_a_token_of(name: str) -> None:
    found = example(name)
    (role,), (binding,) = of_kind(found, "Role"), of_kind(found, "RoleBinding")
    config = yaml.safe_load(named(found, "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"])
    wanted = [PODS, *((POOLS, OBJECTIVES) if "inference_pool" in config["discovery"]["kubernetes"] else ())]
    assert [(rule["apiGroups"], rule["resources"]) for rule in role["rules"]] == [
        ([each.version.rpartition("/")[0]], [each.plural]) for each in wanted
    ]
    assert all(rule["verbs"] == ["get", "list", "watch"] for rule in role["rules"])
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    gateway = of_kind(found, "Deployment")[0]
    spec = gateway["spec"]["template"]["spec"]
    account = {"kind": "ServiceAccount", "name": spec["serviceAccountName"], "namespace": NAMESPACE}
    assert binding["subjects"] == [account]
    assert (
        config["discovery"]["kubernetes"]["namespace"]
        == role["metadata"]["namespace"]
        == binding["metadata"]["namespace"]
    )
    assert not of_kind(found, "ClusterRole") + of_kind(found, "ClusterRoleBinding")
    accounts = {each["metadata"]["name"] for each in of_kind(found, "ServiceAccount")}
    for workload in workloads(found):
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] in accounts
    holders = [
        each["name"] for each in containers(gateway) for mount in each["volumeMounts"] if mount["name"] == "api-access"
    ]
    assert holders == ["balancer"]


@ALL
def test_nobody_is_root_may_write_or_take_all(name: str) -> None:
    for workload in workloads(example(name)):
        pod = workload["spec"]["template"]["spec"]["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in containers(workload):
            security = each["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"memory"} <= each["resources"]["limits"].keys(), each["name"]
            assert {"cpu", "memory"} <= each["resources"]["requests"].keys()


@ALL
def test_pods_have_time_for_all_that_happens_at_their_end(name: str) -> None:
    for workload in workloads(example(name)):
        spec = workload["spec"]["template"]["spec"]
        grace = spec["terminationGracePeriodSeconds"]
        if labels(workload)["app.kubernetes.io/component"] == "relays":
            continue  # agents find another one at once
        if labels(workload)["app.kubernetes.io/component"] == "topic-ingress":
            (drain_s,) = (int(each.partition("=")[2]) for each in containers(workload)[0]["args"] if "drain-s" in each)
            assert drain_s < grace
            continue
        hooks = {each["name"]: each["lifecycle"]["preStop"]["exec"]["command"] for each in spec["containers"]}
        if workload["kind"] == "Deployment":
            assert int(hooks["envoy"][-1]) < int(hooks["balancer"][-1]) < grace
            continue
        arguments = dict(each.lstrip("-").split("=", 1) for each in container(workload, "triton")["args"])
        drain = dict(each.lstrip("-").split("=", 1) for each in hooks["agent"][3:])
        assert int(hooks["triton"][-1]) == int(drain["timeout"])
        assert grace >= int(drain["timeout"]) + int(arguments["exit-timeout-secs"]) + 10


@pytest.mark.parametrize("name", [each for each in EXAMPLES if each not in {"others", "pool"}])
def test_discovery_finds_tritons_by_what_their_pods_say(name: str) -> None:
    found = example(name)
    config = yaml.safe_load(named(found, "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"])
    selector = dict(pair.split("=") for pair in config["discovery"]["kubernetes"]["label_selector"].split(","))
    pools = tritons(found)
    assert selected(found, selector) == pools
    services = {each["metadata"]["name"]: each for each in of_kind(found, "Service")}
    for pool in pools:
        assert services[pool["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
        triton, agent = container(pool, "triton"), container(pool, "agent")
        ports = {each["name"]: each["containerPort"] for each in triton["ports"]}
        given = dict(each.lstrip("-").split("=", 1) for each in triton["args"] if "=" in each)
        assert ports == {kind: int(given[f"{kind}-port"]) for kind in ("grpc", "http", "metrics")}
        of_agent = [each.lstrip("-").split("=", 1) for each in agent["args"] if "=" in each]
        assert dict(of_agent) | {f"triton-{kind}": f"127.0.0.1:{port}" for kind, port in ports.items()} == dict(
            of_agent
        )
        told = [address for option, address in of_agent if option == "balancer"]
        service = services["fleet-balancer-balancers"]
        assert service["spec"]["publishNotReadyAddresses"] is True
        reports = [each["port"] for each in service["spec"]["ports"] if each["name"].startswith("reports")]
        balancers = [f"fleet-balancer-balancers:{port}" for port in reports]
        assert told == (["fleet-balancer-relays:9102"] if "fleet-balancer-relays" in services else balancers)
        assert dict(of_agent)["worker"] == "$(POD_NAME)"
        (env,) = (each for each in agent["env"] if each["name"] == "POD_NAME")
        assert env["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


@ALL
@pytest.mark.parametrize("zone_from", [*ZONE_FIELDS, ""])
def test_every_variable_in_a_command_is_one_of_the_containers(name: str, zone_from: str) -> None:
    found = rendered(EXAMPLES[name], values={"gateway.zoneFrom": zone_from})
    for workload in workloads(found):
        for each in containers(workload):
            words = [*each["command"], *each.get("args", ())]
            used = {name for word in words for name in re.findall(r"\$\((\w+)\)", word)}
            declared = {variable["name"]: variable for variable in each.get("env", ())}
            assert used <= declared.keys()
            assert ("ZONE" in used) == (zone_from != "" and each["name"] == "balancer")
            if "ZONE" in used:
                path = declared["ZONE"]["valueFrom"]["fieldRef"]["fieldPath"]
                assert path == ZONE_FIELDS[zone_from]


@pytest.mark.parametrize(("label", "own"), [("eu-1a", "eu-1a"), ("1", "1"), ("", None)])
def test_the_balancer_takes_the_zone_of_its_pod(label: str, own: str | None) -> None:
    found = rendered(EXAMPLES["try"], values={"gateway.zoneFrom": "label", "config.zones": {"order": ["a", "eu-1a"]}})
    (balancer,) = (
        each for each in containers(named(found, "Deployment", "fleet-balancer")) if each["name"] == "balancer"
    )
    *_, option, setting = balancer["args"]
    assert option == "--set"
    field, _, value = setting.replace("$(ZONE)", label).partition("=")
    text = named(found, "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"]
    config = Overrides({field: read_value(value, field)})(parse(text, "balancer.yaml"))
    assert (config.zones.own, config.zones.order) == (own, ("a", "eu-1a"))


def test_a_kind_of_device_gets_its_nodes_its_gpus_and_its_annotations() -> None:
    pool = named(example("fleet"), "StatefulSet", "fleet-balancer-triton-a100")
    spec = pool["spec"]["template"]
    (term,) = spec["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    (expression,) = term["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("nvidia.com/gpu.product", "In")
    assert container(pool, "triton")["resources"]["limits"]["nvidia.com/gpu"] == 1
    said = spec["metadata"]["annotations"]
    assert {"balancer/device": "A100", "balancer/memory-bytes": "80GiB", "balancer/weight": "1"}.items() <= said.items()


def test_with_operators_the_rules_are_those_that_the_tests_fire_and_the_job_is_what_they_want() -> None:
    found = example("fleet")
    observability = EXAMPLES["fleet"].parents[2] / "observability"
    for name in ("alerts", "slo"):
        file = yaml.safe_load((observability / f"{name}.yaml").read_text())
        assert named(found, "PrometheusRule", f"fleet-balancer-{name}")["spec"] == file
    monitor = named(found, "ServiceMonitor", "fleet-balancer")
    service = named(found, "Service", "fleet-balancer-balancers")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert "balancer" in service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    ports = {each["name"] for each in service["spec"]["ports"]}
    assert {each["port"] for each in monitor["spec"]["endpoints"]} <= ports
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    assert [each for each in of_kind(found, "Service") if chosen <= each["metadata"]["labels"].items()] == [service]
    board = named(found, "ConfigMap", "fleet-balancer-dashboard")["data"]["balancer.json"]
    assert board == (observability / "dashboard.json").read_text()
