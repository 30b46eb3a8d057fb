"""The section `discovery`: one source, and what the watch of pods is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from balancer.config import config
from balancer.config.config import ConfigError
from balancer.discovery.cluster.api import ClusterAccess
from balancer.discovery.pods.watch import PodsWanted


def test_pods_are_wanted_as_the_config_says(tmp_path: Path) -> None:
    parsed = config.parse("discovery: {kubernetes: {label_selector: a=b}}", "f").discovery.kubernetes
    assert parsed is not None
    assert parsed.wanted() == PodsWanted(ClusterAccess("a=b"))
    more = "namespace: inference, kubeconfig: kube/config, grpc_port: 5001, http_port: 5000"
    text = f"discovery: {{kubernetes: {{label_selector: 'a in (b, c)', {more}}}}}"
    parsed = config.parse(text, str(tmp_path / "balancer.yaml")).discovery.kubernetes
    assert parsed is not None
    access = ClusterAccess("a in (b, c)", "inference", tmp_path / "kube" / "config")
    assert parsed.wanted() == PodsWanted(access, (5001, 5000))
    parsed = config.parse("discovery: {kubernetes: {inference_pool: triton.v1}}", "f").discovery.kubernetes
    assert parsed is not None
    assert parsed.wanted() == PodsWanted(ClusterAccess(""), pool="triton.v1")


@pytest.mark.parametrize(
    ("discovery", "message"),
    [
        ("{kubernetes: {}}", "must have either label_selector or inference_pool, which say the pods"),
        ("{kubernetes: {label_selector: a, inference_pool: b}}", "must have either label_selector or inference_pool"),
        ("{kubernetes: {inference_pool: B}}", "discovery.kubernetes.inference_pool"),
        ("{kubernetes: {label_selector: ''}}", "discovery.kubernetes.label_selector"),
        ("{kubernetes: {label_selector: a, namespace: 'a/b'}}", "discovery.kubernetes.namespace"),
        ("{kubernetes: {label_selector: a}, file: b}", "names kubernetes beside another source; keep one of"),
        ("{kubernetes: {label_selector: a}, dns: {name: b}}", "names kubernetes beside another source; keep one of"),
        ("{dns: {name: b}, workers: [{name: a, address: 10.0.0.1, grpc_port: 1, http_port: 2}]}", "names dns beside"),
        ("{dns: {name: 'a b'}}", "discovery.dns.name"),
        ("{dns: {name: a, grpc_port: 8000}}", "discovery.dns.http_port: 8000 is not allowed: is the grpc_port too"),
    ],
)
def test_sources_that_cannot_be_asked(discovery: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(f"discovery: {discovery}", "f")
    assert message in str(caught.value)
