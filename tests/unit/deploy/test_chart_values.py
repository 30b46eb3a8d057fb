"""The chart's values: linted, rendered, and refused in words."""

import json
from typing import Any

import pytest
import yaml
from support.chart import CHART, EXAMPLES, OPERATORS, helm, of_kind, rendered, template

from balancer.config.config import RESTART_FIELDS, parse
from balancer.config.frontend import bootstrap_options

TRY = EXAMPLES["try"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_linted(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), "--values", str(EXAMPLES[name]), "--kube-version", "1.31.0")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("apis", [(), OPERATORS], ids=["plain", "operators"])
def test_every_object_has_a_kind_a_name_and_nobody_elses_name(name: str, apis: tuple[str, ...]) -> None:
    found = rendered(EXAMPLES[name], apis=apis)
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in found]
    assert len(set(names)) == len(names)
    groups = {each["apiVersion"].partition("/")[0] for each in found}
    operators = {api.partition("/")[0] for api in OPERATORS}
    assert apis or not groups & operators, "of an operator that the cluster has not"


def test_the_schema_knows_every_value() -> None:
    """A value that is documented and not in the schema would be refused; one in the schema alone is not documented."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def names(part: Any, where: str) -> set[str]:
        if "$ref" in part:
            part = schema["definitions"][part["$ref"].rpartition("/")[2]]
        if part.get("type") == "array" and "properties" in part.get("items", {}):
            part = part["items"]
        if "properties" not in part:
            return {where}
        return {name for key, below in part["properties"].items() for name in names(below, f"{where}.{key}")}

    def documented(part: Any, where: str, in_schema: set[str]) -> set[str]:
        if isinstance(part, list) and part and isinstance(part[0], dict) and where not in in_schema:
            part = part[0]
        if not isinstance(part, dict) or where in in_schema:
            return {where}
        return {name for key, below in part.items() for name in documented(below, f"{where}.{key}", in_schema)}

    expected = names(schema, "") - {".global"}
    assert documented(yaml.safe_load((CHART / "values.yaml").read_text()), "", expected) == expected


REFUSED_BY_SCHEMA = {
    "gateway.replicas": (0, "gateway.replicas: Must be greater than or equal to 1"),
    "gateway.frontend": ("native2", 'gateway.frontend must be one of the following: "native", "pick", "proxy"'),
    "gateway.zoneFrom": ("node", 'gateway.zoneFrom must be one of the following: "", "label", "annotation"'),
    "discovery.inferencePool": ("A", "discovery.inferencePool: Does not match pattern"),
    "gateway.fronted": ("pick", "gateway: Additional property fronted is not allowed"),
    "gateway.ports.clients": (70000, "gateway.ports.clients: Must be less than or equal to 65535"),
    "gateway.balancer.limits.memory": ("1 GB", "gateway.balancer.limits.memory: Does not match pattern"),
    "triton.pools": ([{"name": "a" * 16, "replicas": 1}], "triton.pools.0.name: String length must be less than"),
    "triton.agent.reportHz": (5, "triton.agent.reportHz: Must be greater than or equal to 20"),
    "certificates.source": ("vault", "certificates.source must be one of the following"),
    "triton.drain.exitTimeoutSeconds": ("30s", "triton.drain.exitTimeoutSeconds: Invalid type"),
    "autoscaling.behavior.scaleDown.policies": ([{"type": "Pods"}], "value is required"),
    "autoscaling.behavior.scaledown": ({}, "must be one of"),
    "autoscaling.languageModels": ([{"name": "vllm"}], "kind is required"),
    "autoscaling.kind": ("vpa", "autoscaling.kind must be one of the following"),
    "images.triton.tag": ("24.10 py3", "images.triton.tag: Does not match pattern"),
}
_VLLM = {"kind": "Deployment", "name": "vllm", "min": 1, "max": 2, "waitingTokens": 1, "memoryShare": 0.8}
REFUSED_TOGETHER = {
    "autoscaling.languageModels": ([{**_VLLM, "min": 3}], "autoscaling.languageModels: max 2 of vllm is below min 3"),
    "config.listen": ({"admin": "0.0.0.0:1"}, "config.listen: is the chart's to set; use gateway.ports"),
    "config.discovery": ({"workers": []}, "config.discovery: is the chart's to set; use discovery"),
    "config.envoy": ({"listen": "0.0.0.0:1"}, "config.envoy.listen: is the chart's to set"),
    "config.admin": (
        {"token_file": "x"},
        "config.admin.token_file: is the chart's to set; use gateway.adminTokenSecret",
    ),
    "gateway.processes": (2, "gateway.processes: 2 does not go with gateway.frontend native"),
    "certificates.source": ("certManager", "certificates.issuer.name: empty"),
    "triton.models.demo": (False, "triton.models: name one of repository, volume and demo"),
    "triton.models.repository": ("s3://models", "triton.models: name one of repository, volume and demo"),
    "triton.enabled": (False, "discovery.labelSelector: empty"),
    "discovery": ({"labelSelector": "a=b", "inferencePool": "c"}, "discovery.inferencePool: the pool says which pods"),
    "triton.pools": ([{"name": "a", "replicas": 1}] * 2, "triton.pools: a twice"),
}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [(name, *rest) for each in (REFUSED_BY_SCHEMA, REFUSED_TOGETHER) for name, rest in each.items()],
)
def test_a_bad_value_is_refused_with_its_name(name: str, value: Any, words: str) -> None:
    done = template(TRY, values={name: value})
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("frontend", ["pick", "proxy"])
def test_several_processes_go_with_all_but_native(frontend: str) -> None:
    found = rendered(TRY, values={"gateway.frontend": frontend, "gateway.processes": 3})
    config = parse(config_of(found), "balancer.yaml")
    assert (config.envoy.frontend, config.processes) == (frontend, 3)
    # All processes of all pods tell each other: the name stands for the pods.
    ports = [f"{config.listen.reports.rpartition(':')[2][:-1]}{number}" for number in (2, 3, 4)]
    (service,) = {address.rpartition(":")[0] for address in config.peers.addresses}
    assert [address.rpartition(":")[2] for address in config.peers.addresses] == ports
    assert service in {each["metadata"]["name"] for each in of_kind(found, "Service")}


def test_a_zone_is_said_by_the_pod_or_by_the_values() -> None:
    done = template(TRY, values={"gateway.zoneFrom": "label", "config.zones": {"own": "a"}})
    assert done.returncode != 0
    assert "config.zones.own: each pod says it, by gateway.zoneFrom; leave out one of the two" in done.stderr
    assert template(TRY, values={"gateway.zoneFrom": "label", "config.zones": {"order": ["a", "b"]}}).returncode == 0


def config_of(found: list[dict[str, Any]]) -> str:
    (held,) = (each["data"]["balancer.yaml"] for each in of_kind(found, "ConfigMap") if "balancer.yaml" in each["data"])
    return str(held)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_balancer_takes_the_config(name: str) -> None:
    text = config_of(rendered(EXAMPLES[name]))
    config = parse(text, "balancer.yaml")
    assert config.envoy.on_this_machine
    assert config.discovery.kubernetes is not None
    assert bootstrap_options(config).balancers[0].startswith("unix:")


def restart_stamp(values: dict[str, Any]) -> str:
    (gateway,) = of_kind(rendered(TRY, values=values), "Deployment")
    return str(gateway["spec"]["template"]["metadata"]["annotations"]["balancer-chart/restart-fields"])


def test_pods_are_replaced_for_what_a_running_balancer_does_not_take_over_and_for_nothing_else() -> None:
    as_it_is = restart_stamp({})
    assert (
        restart_stamp({"config.policy": {"name": "wlpr"}, "config.limits": {"max_pending_per_worker": 8}}) == as_it_is
    )
    assert restart_stamp({"config.log": {"level": "debug"}}) == as_it_is
    changes = {
        "discovery": {"discovery.labelSelector": "app=other"},
        "listen": {"gateway.ports.reports": 9500},
        "admin": {"config.admin": {"inference_pool": "x"}},
        "tls": {"certificates.source": "certManager", "certificates.issuer.name": "x"},
        "processes": {"gateway.frontend": "pick", "gateway.processes": 2},
        "envoy": {"config.envoy": {"open_health": True}},
    }
    # What the chart fixes cannot change: every pod is the first of its own Envoy, and tells all others.
    assert {field.partition(".")[0] for field in RESTART_FIELDS} == {*changes, "first_process", "state_file", "peers"}
    assert all(restart_stamp(values) != as_it_is for values in changes.values())
