"""What the chart lets choose: who says which pods are workers, and who forwards."""

import yaml
from support.chart import example, named

from balancer.bootstrap.bootstrap import render
from balancer.bootstrap.nodes import manager_of, routes_of
from balancer.config.config import parse
from balancer.config.frontend import bootstrap_options
from balancer.extproc.kserve import SERVICE
from balancer.extproc.names import GRPC_CLUSTER, PROXY_CLUSTER


def test_a_pool_says_which_pods_in_place_of_a_selector() -> None:
    text = named(example("pool"), "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"]
    section = parse(text, "balancer.yaml").discovery.kubernetes
    assert section is not None
    assert (section.inference_pool, section.label_selector, section.namespace) == ("triton", None, "inference")


def test_the_proxy_forwards_what_envoys_bootstrap_sends_it() -> None:
    config = parse(named(example("proxy"), "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"], "f")
    bootstrap = yaml.safe_load(render(bootstrap_options(config)))
    resources = bootstrap["static_resources"]
    manager = manager_of(resources["listeners"][0])
    clusters = {route["match"].get("path"): route.get("route", {}).get("cluster") for route in routes_of(manager)}
    to_proxy = {path for path, cluster in clusters.items() if cluster == PROXY_CLUSTER}
    assert to_proxy == {f"{SERVICE}{method}" for method in ("ModelInfer", "ModelStreamInfer")}
    # What the container's probes and its hook ask Envoy for.
    assert {GRPC_CLUSTER, PROXY_CLUSTER} <= {cluster["name"] for cluster in resources["clusters"]}
    assert manager["stat_prefix"] == "inference"
