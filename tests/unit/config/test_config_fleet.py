from typing import Any

import pytest
import yaml

from balancer.bootstrap.bootstrap import render
from balancer.bootstrap.nodes import manager_of, mutations_of, routes_of
from balancer.bootstrap.proxy import FleetOptions
from balancer.config.config import ConfigError, from_mapping
from balancer.config.frontend import bootstrap_options
from balancer.extproc import names

TLS = {"cert_file": "c", "key_file": "k", "client_ca_file": "a"}
LOCAL = {"envoy": {"listen": "127.0.0.1:8080"}, "listen": {"fleet": "127.0.0.1:9200"}}
KEYS = {"api_keys": {"file": "keys.yaml"}}


@pytest.mark.parametrize(
    ("sections", "address"),
    [
        ({}, "127.0.0.1:9202"),
        ({"listen": {"envoy": "0.0.0.0:7000"}}, "127.0.0.1:7200"),
        ({"listen": {"envoy": "[::1]:65500"}}, "[::1]:65300"),
        ({"listen": {"envoy": "unix:/run/envoy.sock"}}, "unix:/run/envoy.sock.fleet"),
        ({"listen": {"fleet": None}}, None),
        ({"listen": {"gateways": "0.0.0.0:9010"}}, None),
        ({"envoy": {"balancers": ["10.0.0.5:9003"]}}, None),
    ],
)
def test_calls_about_the_fleet_are_answered_wherever_envoy_is_ours(sections: dict[str, Any], address: str) -> None:
    config = from_mapping(sections)
    assert config.listen.fleet_at == address
    assert (bootstrap_options(config).fleet is not None) == (address is not None)
    assert from_mapping(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("sections", "options"),
    [
        ({}, FleetOptions(("127.0.0.1:9200",), ("127.0.0.1:9201",))),
        ({"listen": {"fleet": "0.0.0.0:9200"}}, FleetOptions(("127.0.0.1:9200",), ("127.0.0.1:9201",))),
        (
            {"listen": {"fleet": "unix:/run/fleet"}, "processes": 2},
            FleetOptions(
                ("unix:/run/fleet.0", "unix:/run/fleet.1"), ("unix:/run/fleet.0.rest", "unix:/run/fleet.1.rest")
            ),
        ),
        (
            {"envoy": {"fleet": ["one.svc:9200", "other.svc:9200"]}},
            FleetOptions(("one.svc:9200", "other.svc:9200"), ("one.svc:9201", "other.svc:9201")),
        ),
        (
            {"envoy": {"listen": "127.0.0.1:8080"}, "fleet": {"control": {"callers": ["*"]}}},
            FleetOptions(("127.0.0.1:9200",), ("127.0.0.1:9201",), changes=True),
        ),
    ],
)
def test_envoy_knows_where_the_fleet_answers(sections: dict[str, Any], options: FleetOptions) -> None:
    assert bootstrap_options(from_mapping({"listen": {"fleet": "127.0.0.1:9200"}, **sections})).fleet == options


@pytest.mark.parametrize(
    ("sections", "field", "remedy"),
    [
        (
            {"listen": {"fleet": None}, "fleet": {"control": {"callers": ["a"]}}, "envoy": KEYS},
            "fleet.control.callers",
            "needs listen.fleet",
        ),
        (
            {**LOCAL, "fleet": {"control": {"callers": ["a"]}}},
            "fleet.control.callers",
            "needs envoy.jwt, envoy.api_keys",
        ),
        (
            {"listen": LOCAL["listen"], "fleet": {"control": {"callers": ["*"]}}},
            "fleet.control.callers",
            "only where envoy.listen is an address of this machine",
        ),
        (
            {"listen": {"fleet": "0.0.0.0:9200"}, "envoy": KEYS, "fleet": {"control": {"callers": ["a"]}}},
            "listen.fleet",
            "needs tls.envoy",
        ),
        (
            {"listen": LOCAL["listen"], "envoy": KEYS, "fleet": {"control": {"callers": ["a"]}}, "processes": 2},
            "fleet.control.file",
            "must name a file",
        ),
        ({"listen": LOCAL["listen"], "envoy": {"balancers": ["b:9002"]}}, "envoy.fleet", "must name the addresses"),
        ({"listen": {"fleet": "127.0.0.1:8089"}}, "listen.admin", "port 8090 is needed for listen.fleet"),
        ({"listen": {"fleet": "unix:/run/x", "envoy": "unix:/run/x"}}, "listen.", "is the socket of listen."),
        ({"fleet": {"ready_workers": 0}}, "fleet.ready_workers", "greater than or equal to 1"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(sections: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(sections)
    assert field in str(error.value)
    assert remedy in str(error.value)


def clusters_of(**control: Any) -> dict[str, str]:
    """Cluster of each path or pattern of the listener; empty where Envoy itself answers."""
    options = bootstrap_options(from_mapping({**LOCAL, "fleet": {"control": control}}))
    bootstrap = yaml.safe_load(render(options))
    manager = manager_of(bootstrap["static_resources"]["listeners"][0])
    return {
        str(next(iter(route["match"].values()))): route.get("route", {}).get("cluster", "")
        for route in routes_of(manager)
    }


def test_inference_goes_to_workers_and_questions_to_the_balancer_or_one() -> None:
    routes = clusters_of()
    service = "/inference.GRPCInferenceService"
    assert routes[f"{service}/ModelInfer"] == routes[f"{service}/ModelStreamInfer"] == names.GRPC_CLUSTER
    either = f"{names.FLEET_GRPC_CLUSTER}{names.OR_WORKER}"
    for call in ("ServerReady", "ModelStatistics", "RepositoryIndex", "ModelConfig"):
        assert routes[f"{service}/{call}"] == either
    assert routes["/v2/health/ready"] == f"{names.FLEET_REST_CLUSTER}{names.OR_WORKER}"
    assert routes[f"{service}/TraceSetting"] == names.FLEET_GRPC_CLUSTER


def test_changes_go_to_the_balancer_where_somebody_may_make_them_and_never_to_a_worker() -> None:
    load = "/inference.GRPCInferenceService/RepositoryModelLoad"
    assert load not in clusters_of()
    with_callers = clusters_of(callers=["*"])
    assert with_callers[load] == names.FLEET_GRPC_CLUSTER
    assert not [path for path, cluster in with_callers.items() if "oad" in path and cluster.endswith(names.OR_WORKER)]


@pytest.mark.parametrize("front", ["pick", "native"])
@pytest.mark.parametrize("callers", [[], ["*"]])
def test_no_client_names_himself(front: str, callers: list[str]) -> None:
    """The header by which callers are told apart is taken out first: callers may be named while Envoy runs."""
    envoy = {**LOCAL["envoy"], "frontend": front}
    options = bootstrap_options(from_mapping({**LOCAL, "envoy": envoy, "fleet": {"control": {"callers": callers}}}))
    bootstrap = yaml.safe_load(render(options))
    manager = manager_of(bootstrap["static_resources"]["listeners"][0])
    assert mutations_of(manager)[0] == {"remove": names.PRINCIPAL_HEADER}
