"""What the chart scales pools by, and at which pace."""

import re

import pytest
import yaml
from support.chart import EXAMPLES, NAMESPACE, ROOT, Object, example, named, of_kind, rendered, tritons
from support.exported import declared, selectors

from balancer.cli.agent import agent
from balancer.ingress.metrics import IngressMetrics


def queries(found: tuple[Object, ...]) -> list[str]:
    adapter = [
        yaml.safe_load(each["data"]["values.yaml"])
        for each in of_kind(found, "ConfigMap")
        if "values.yaml" in each["data"]
    ]
    keda = [
        trigger["metadata"]["query"] for each in of_kind(found, "ScaledObject") for trigger in each["spec"]["triggers"]
    ]
    return [rule["metricsQuery"] for values in adapter for rule in values["rules"]["external"]] + keda


def test_pools_scale_by_metrics_that_the_adapter_makes_of_what_is_exported() -> None:
    found = example("fleet")
    (rules,) = (
        yaml.safe_load(each["data"]["values.yaml"])["rules"]["external"]
        for each in of_kind(found, "ConfigMap")
        if "values.yaml" in each["data"]
    )
    made = {rule["name"]["as"] for rule in rules}
    scalers = of_kind(found, "HorizontalPodAutoscaler")
    assert {metric["external"]["metric"]["name"] for each in scalers for metric in each["spec"]["metrics"]} == made
    pools = {each["metadata"]["name"]: each for each in tritons(found)}
    for each in scalers:
        assert "replicas" not in pools[each["spec"]["scaleTargetRef"]["name"]]["spec"], "two would set them"
    assert len(queries(found)) == 3 * len(pools)


def test_hpa_and_keda_scale_at_the_pace_of_the_values() -> None:
    paced = {"scaleDown": {"policies": [{"type": "Percent", "value": 25, "periodSeconds": 60}]}}
    values = yaml.safe_load((EXAMPLES["fleet"].parents[1] / "values.yaml").read_text())["autoscaling"]["behavior"]
    for given, wanted in ({}, values), ({"autoscaling.behavior.scaleDown": paced["scaleDown"]}, paced):
        hpas = of_kind(rendered(EXAMPLES["fleet"], values=given), "HorizontalPodAutoscaler")
        keda = of_kind(rendered(EXAMPLES["secrets"], values=given), "ScaledObject")
        found = [each["spec"]["behavior"] for each in hpas]
        found += [each["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] for each in keda]
        assert len(found) >= 2
        for each in found:
            assert each["scaleDown"]["policies"] == wanted["scaleDown"]["policies"]


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_your_servers_of_language_models_scale_by_waiting_tokens_and_memory(kind: str) -> None:
    found = rendered(EXAMPLES["language_models"], values={"autoscaling.kind": kind})
    (scaler,) = of_kind(found, {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[kind])
    spec = scaler["spec"]
    assert (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) == ("Deployment", "vllm")
    if kind == "hpa":
        targets = [each["external"]["target"]["value"] for each in spec["metrics"]]
    else:
        targets = [each["metadata"]["threshold"] for each in spec["triggers"]]
    assert targets == ["20000", "0.8"]
    exported = declared()
    for query, metric in zip(queries(found), ("waiting_tokens", "memory_share"), strict=True):
        ((name, selector),) = re.findall(r"(balancer_\w+)\{([^}]*)\}", query)
        conditions = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
        assert name == f"balancer_worker_{metric}"
        assert conditions.keys() - {"namespace"} <= exported[name]
        assert re.fullmatch(conditions["worker"], "vllm-7c9d8b-x2x4z")
        assert not re.fullmatch(conditions["worker"], "vllmother-7c9d8b-x2x4z")


@pytest.mark.parametrize("name", ["fleet", "secrets"])
def test_queries_name_what_is_exported_and_workers_of_the_pool(name: str) -> None:
    found = example(name)
    exported = declared()
    pools = [each["metadata"]["name"] for each in tritons(found)]
    for query in queries(found):
        if "ingress" in query:
            continue
        ((metric, selector),) = re.findall(r"(balancer_\w+)\{([^}]*)\}", query)
        conditions = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
        assert conditions.keys() - {"namespace"} <= exported[metric]
        assert conditions["namespace"] == NAMESPACE
        assert [pool for pool in pools if re.fullmatch(conditions["worker"], f"{pool}-3")] == [
            conditions["worker"].removesuffix("-[0-9]+")
        ]


def test_what_waits_at_the_broker_scales_by_metrics_of_the_ingress() -> None:
    found = example("fleet")
    lags = [each for each in queries(found) if "balancer_ingress_lag_messages" in each]
    assert len(lags) == len(tritons(found))
    exported = {sample.name for family in IngressMetrics().registry.collect() for sample in family.samples}
    exported |= {f"{family.name}_total" for family in IngressMetrics().registry.collect()}
    named(found, "StatefulSet", "fleet-balancer-topic-ingress")
    for query in lags:
        for metric, matchers in selectors(query):
            assert metric in exported
            assert re.fullmatch(matchers["pod"][1], "fleet-balancer-topic-ingress-1")
            assert matchers["namespace"][1] == NAMESPACE


def test_the_agent_that_the_page_puts_beside_your_server_reports_to_the_chart_s_balancers() -> None:
    page = (ROOT / "docs" / "language_models" / "servers.md").read_text()
    (written,) = re.findall(r"```yaml\n(- name: agent\n.*?)```", page, re.DOTALL)
    (container,) = yaml.safe_load(written)
    _, _, *arguments = container["command"]
    options = agent.make_context("agent", list(arguments), resilient_parsing=True).params
    (address,) = options["balancers"]
    host, _, port = address.rpartition(":")
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(example("language_models"), "Service")}
    assert int(port) in {each["port"] for each in services[host]["ports"]}
    assert options["openai"] == "127.0.0.1:8000"
