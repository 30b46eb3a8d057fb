"""The bootstrap with gRPC's inferences sent to the balancer, which forwards them itself. All else stays as it is: REST
and questions about models and servers go to workers that the balancer picks.
"""

from __future__ import annotations

import copy

from balancer.gateway import names
from balancer.gateway.bootstrap_tls import Node
from balancer.gateway.kserve import METHODS, SERVICE, Kind

_FORWARDED = {f"{SERVICE}{method}" for method, kind in METHODS.items() if kind in (Kind.INFERENCE, Kind.STREAM)}
_TOLD_BY_ENVOY = f"!(has(upstream.address) && xds.route_name == '{names.PROXIED}')"


def forward_by_balancer(bootstrap: Node) -> None:
    """Change a complete bootstrap in which Envoy asks for each request."""
    resources = bootstrap["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    for route in host["routes"]:
        if route["match"].get("path") in _FORWARDED:
            _to_proxy(route)
    for log in manager["access_log"]:
        if log["name"] == names.OUTCOMES_LOG:
            log["filter"] = {"and_filter": {"filters": [log["filter"], _cel(_TOLD_BY_ENVOY)]}}
    resources["clusters"].append(_proxy_cluster())


def _to_proxy(route: Node) -> None:
    """The balancer reads the message itself, and sends again what may be. Envoy does so where no balancer took it."""
    off = {"@type": names.FILTER_OFF_TYPE, "disabled": True}
    route["name"] = names.PROXIED
    route["typed_per_filter_config"] = {names.PICKS_FILTER: off, names.EXTRACTION: off}
    action = copy.deepcopy(route["route"])
    action["cluster"] = names.PROXY_CLUSTER
    action["retry_policy"] = {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": 2,
        # Where the balancer cannot be reached, the workers are next.
        "retry_priority": {
            "name": names.PREVIOUS_PRIORITIES,
            "typed_config": {"@type": names.PREVIOUS_PRIORITIES_TYPE, "update_frequency": 1},
        },
        "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.010s"},
    }
    route["route"] = action


def _proxy_cluster() -> Node:
    """The balancer's processes that are well; while there are none, the workers themselves."""
    return {
        "name": names.PROXY_CLUSTER,
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "0.25s",
        "cluster_type": {
            "name": names.AGGREGATE,
            "typed_config": {
                "@type": names.AGGREGATE_TYPE,
                "clusters": [names.BALANCER_CLUSTER, names.GRPC_CLUSTER],
            },
        },
    }


def _cel(expression: str) -> Node:
    typed = {"@type": names.CEL_FILTER_TYPE, "expression": expression}
    return {"extension_filter": {"name": names.CEL_FILTER, "typed_config": typed}}
