"""Which requests the bootstrap sends to a balancer that forwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.bootstrap import options_of

from balancer import bounds
from balancer.bootstrap.bootstrap import BootstrapOptions, render
from balancer.bootstrap.native import NativeOptions
from balancer.bootstrap.nodes import manager_of, routes_of
from balancer.bootstrap.proxy import FleetOptions
from balancer.bootstrap.sections import BalancerTlsSection
from balancer.extproc import names

FLEET = FleetOptions(grpc=("127.0.0.1:9200",), rest=("127.0.0.1:9201",))
MARKED = {"name": names.FORWARDED_HEADER, "string_match": {"exact": "true"}}
REST = f"{names.PROXY_REST_CLUSTER}{names.OR_WORKER}"


def resources(**options: Any) -> Any:
    return yaml.safe_load(render(options_of(**{"frontend": "proxy", **options})))["static_resources"]


def is_held(route: Any) -> bool:
    """Whether Envoy has such a request whole before it goes on."""
    return names.BUFFER_FILTER in route.get("typed_per_filter_config", {})


def routes(*, held: bool = False, **options: Any) -> list[Any]:
    """In order; `held`: of compressed requests that are forwarded, and else all others."""
    manager = manager_of(resources(**options)["listeners"][0])
    return [route for route in routes_of(manager) if is_held(route) is held]


@pytest.mark.parametrize("how", [{}, {"frontend": "pick", "forwarded": ("a",)}])
def test_what_is_forwarded_compressed_is_whole_before_it_goes_on(how: dict[str, Any]) -> None:
    grpc, rest = routes(held=True, fleet=FLEET, **how)
    assert grpc["match"]["path"].endswith("/ModelInfer")
    assert [each["match"]["headers"][-1]["name"] for each in (grpc, rest)] == ["grpc-encoding", "content-encoding"]
    for held in (grpc, rest):
        like = next(each for each in routes(fleet=FLEET, **how) if each.get("route") == held["route"])
        assert held["match"]["headers"][:-1] == like["match"].get("headers", [])


def test_without_a_port_for_http_rest_goes_as_picked() -> None:
    assert REST not in {route.get("route", {}).get("cluster") for route in routes()}
    assert REST not in {cluster["name"] for cluster in resources()["clusters"]}


def test_what_is_not_converted_is_matched_before_what_is() -> None:
    patterns = [route["match"].get("safe_regex", {}).get("regex", "") for route in routes(fleet=FLEET)]
    infers = [route for route, regex in zip(routes(fleet=FLEET), patterns, strict=True) if regex.endswith("infer")]
    *picked, forwarded = infers
    assert [route["route"]["cluster"] for route in picked] == [names.HTTP_CLUSTER] * 3
    assert (forwarded["name"], forwarded["route"]["cluster"]) == (names.PROXIED, REST)
    assert "headers" not in forwarded["match"]
    headers = [header for route in picked for header in route["match"]["headers"]]
    ranges = [header["range_match"]["start"] for header in headers if "range_match" in header]
    assert ranges == [BootstrapOptions().envoy.request_buffer_limit_bytes + 1, bounds.MAX_JSON_BYTES + 1]


def test_of_some_models_only_what_is_marked_is_forwarded() -> None:
    some = {"frontend": "pick", "forwarded": ("a.b", 'c"\\')}
    first, second, *rest = routes(**some)
    for route in (first, second):
        assert route["match"]["headers"] == [MARKED]
        assert (route["name"], route["route"]["cluster"]) == (names.PROXIED, names.PROXY_CLUSTER)
    assert names.PROXIED not in {route["name"] for route in rest}
    manager = manager_of(resources(**some)["listeners"][0])
    filters = [each["name"] for each in manager["http_filters"]]
    assert filters.index(names.FORWARDED_FILTER) == filters.index(names.PICKS_FILTER) - 1
    code = manager["http_filters"][filters.index(names.FORWARDED_FILTER)]["typed_config"]["default_source_code"]
    (models, *_) = code["inline_string"].splitlines()
    assert models == r'local models = {["\097\046\098"] = true, ["\099\034\092"] = true}'


def test_of_some_models_rest_is_forwarded_where_it_is_marked() -> None:
    some = routes(frontend="pick", forwarded=("a.b", "c d"), fleet=FLEET)
    (forwarded,) = [route for route in some if route.get("route", {}).get("cluster") == REST]
    assert forwarded["match"]["headers"] == [MARKED]


def test_of_some_models_the_module_marks_what_is_to_be_forwarded() -> None:
    """Its routes say what it may mark; the listener that asks does as where Envoy asks for each request."""
    native = NativeOptions(Path("/m.so"), Path("/k.so"), Path("/f"))
    some: dict[str, Any] = {"frontend": "pick", "forwarded": ("a.b", "ü\n"), "fleet": FLEET}
    outer, inner = (manager_of(listener) for listener in resources(native=native, **some)["listeners"][:2])
    module = outer["http_filters"][0]["typed_config"]
    assert module["filter_config"]["value"] == "/k.so\n/f\n\n3:a.b3:ü\n"
    picked = manager_of(resources(**some)["listeners"][0])
    assert inner["http_filters"][:-1] == picked["http_filters"][:-1]
    of_picked = [route for route in routes_of(picked) if "fleet" not in str(route)]
    of_inner = routes_of(inner)
    assert [each for each in of_inner if each["name"] == names.PROXIED] == [
        each for each in of_picked if each["name"] == names.PROXIED
    ]
    (first, *routes_of_outer) = routes_of(outer)
    assert first["route"]["cluster"] == names.ASKING
    marked = [each for each in routes_of_outer if each["name"] == names.PROXIED and not is_held(each)]
    unmarked = [each for each in routes_of_outer if each["name"] == names.FORWARDABLE]
    assert [each["match"].pop("headers") for each in marked] == 3 * [[MARKED]]
    assert [each["match"] for each in unmarked] == [each["match"] for each in marked]
    assert [each["route"]["cluster"] for each in unmarked] == [
        *(2 * [names.GRPC_CLUSTER]),
        names.HTTP_CLUSTER,
    ]


def test_the_module_gets_no_models_where_there_are_none() -> None:
    native = NativeOptions(Path("/m.so"), Path("/k.so"), Path("/f"))
    rest = {str(route["name"]) for route in routes(frontend="pick", native=native, fleet=FLEET)}
    assert not rest & {names.PROXIED, names.FORWARDABLE}


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_clusters_are_the_balancers_and_then_the_workers(encrypted: bool, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("a certificate")
    tls = BalancerTlsSection(ca_file=str(tmp_path / "ca.pem"), server_name="balancer") if encrypted else None
    clusters = {cluster["name"]: cluster for cluster in resources(fleet=FLEET, balancer_tls=tls)["clusters"]}
    ours, either = clusters[names.PROXY_REST_CLUSTER], clusters[REST]
    assert either["cluster_type"]["typed_config"]["clusters"] == [names.PROXY_REST_CLUSTER, names.AROUND]
    assert not [name for name, each in clusters.items() if "proxy" in name and "outlier_detection" in each]
    assert ours["health_checks"][0]["http_health_check"] == {"path": names.PROXY_HEALTH_PATH}
    assert ("transport_socket" in ours) is encrypted
    assert ours["load_assignment"]["endpoints"] == clusters[names.FLEET_REST_CLUSTER]["load_assignment"]["endpoints"]


def test_around_the_balancer_nothing_compressed_goes() -> None:
    around = next(
        each
        for each in yaml.safe_load(render(options_of(frontend="proxy")))["static_resources"]["listeners"]
        if each["name"] == names.AROUND
    )
    manager = manager_of(around)
    route = routes_of(manager)[0]
    assert (route["name"], route["direct_response"]["status"]) == (names.COMPRESSED_ROUTE, 503)
    assert "route" not in route
