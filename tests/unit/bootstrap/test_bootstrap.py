from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.bootstrap import changed, check_accepted, options_of
from support.certificates import Authority

from balancer.bootstrap.bootstrap import BootstrapOptions, render, render_with_secrets, template
from balancer.bootstrap.native import NativeOptions
from balancer.bootstrap.nodes import manager_of, routes_of
from balancer.bootstrap.sections import BalancerTlsSection, EnvoyTlsSection, TracesSection
from balancer.extproc import picker
from balancer.extproc.names import NOT_EXECUTED_TEXTS, NOT_TAKEN
from balancer.proxy.messages import INFER

ENVOY = Path(__file__).parents[3] / "envoy"


def rendered(options: BootstrapOptions) -> Any:
    return yaml.safe_load(render(options))


def manager(bootstrap: Any) -> Any:
    return manager_of(bootstrap["static_resources"]["listeners"][0])


def routes() -> Any:
    return routes_of(manager(yaml.safe_load(template())))


def test_the_defaults_are_the_file_that_an_sre_reads() -> None:
    assert template() == (ENVOY / "bootstrap.yaml").read_text()
    assert rendered(BootstrapOptions()) == yaml.safe_load(template())


def test_the_descriptor_is_compiled_from_the_routing_view(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools compiles the descriptor")
    out = tmp_path / "routing_view.pb"
    assert protoc.main(["protoc", f"--proto_path={ENVOY}", f"--descriptor_set_out={out}", "routing_view.proto"]) == 0
    assert out.read_bytes() == (ENVOY / "routing_view.pb").read_bytes()
    (extraction,) = [f for f in manager(rendered(BootstrapOptions()))["http_filters"] if "extraction" in f["name"]]
    assert base64.b64decode(extraction["typed_config"]["descriptor_set"]["inline_bytes"]) == out.read_bytes()


EVERYTHING = options_of(
    listen="[::]:18080",
    admin="127.0.0.1:19901",
    balancers=("balancer-0.balancers:9000", "10.0.0.2:9001", "[::1]:9002"),
    message_timeout_s=0.05,
    health_timeout_s=2,
    request_buffer_limit_bytes=1000,
    request_timeout_s=7.5,
    traces=TracesSection(collector="collector.observability:4317", share=0.000125, follow_clients=False),
    max_connections=11,
    max_heap_bytes=2**30,
    access_log="/dev/stdout",
)
UNIX = dataclasses.replace(EVERYTHING, balancers=("unix:/run/0.sock", "10.0.0.2:9001"))


def test_options_arrive() -> None:
    bootstrap = rendered(EVERYTHING)
    listener = bootstrap["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"] == {"address": "::", "port_value": 18080}
    assert bootstrap["admin"]["address"]["socket_address"]["port_value"] == 19901
    assert manager(bootstrap)["route_config"]["virtual_hosts"][0]["request_body_buffer_limit"] == 1000
    (ext_proc,) = [f for f in manager(bootstrap)["http_filters"] if f["name"].endswith("ext_proc")]
    assert ext_proc["typed_config"]["message_timeout"] == "0.05s"
    assert manager(bootstrap)["request_timeout"] == "7.5s"
    heap, connections = bootstrap["overload_manager"]["resource_monitors"]
    assert heap["typed_config"]["max_heap_size_bytes"] == 2**30
    assert connections["typed_config"]["max_active_downstream_connections"] == 11
    (balancer,) = [c for c in bootstrap["static_resources"]["clusters"] if c["name"] == "balancer"]
    assert balancer["health_checks"][0]["timeout"] == "2s"


def test_each_process_gets_the_outcomes_of_its_own_picks() -> None:
    bootstrap = rendered(EVERYTHING)
    *loggers, own = manager(bootstrap)["access_log"]
    assert own["name"] == "envoy.access_loggers.file"
    bodies = [
        (
            logger["filter"]["metadata_filter"]["matcher"]["value"]["string_match"]["exact"],
            logger["filter"]["metadata_filter"]["match_if_key_not_found"],
            logger["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"],
            logger["typed_config"]["common_config"]["buffer_flush_interval"],
        )
        for logger in loggers
    ]
    assert bodies == [
        ("0", True, "balancer_0", "0.005s"),
        ("1", True, "balancer_1", "0.005s"),
        ("2", True, "balancer_2", "0.005s"),
    ]
    answers = [
        logger["typed_config"]["common_config"]
        for logger in manager(bootstrap)["http_filters"][-1]["typed_config"]["upstream_log"]
    ]
    assert [
        (each["grpc_service"]["envoy_grpc"]["cluster_name"], each["buffer_flush_interval"]) for each in answers
    ] == [
        ("balancer_0", "0.005s"),
        ("balancer_1", "0.005s"),
        ("balancer_2", "0.005s"),
    ]
    addresses = {
        cluster["name"]: [
            tuple(endpoint["endpoint"]["address"]["socket_address"].values())
            for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        ]
        for cluster in bootstrap["static_resources"]["clusters"]
        if "load_assignment" in cluster
    }
    everyone = [("balancer-0.balancers", 9000), ("10.0.0.2", 9001), ("::1", 9002)]
    each = {f"balancer_{i}": [address] for i, address in enumerate(everyone)}
    each["traces"] = [("collector.observability", 4317)]
    assert addresses == {"balancer": everyone, "balancer_endpoints": everyone} | each


def test_no_time_limit_but_the_clients() -> None:
    forwarding = [route["route"] for route in routes() if "route" in route]
    assert {route["cluster"] for route in forwarding} == {"triton_grpc", "triton_http"}
    assert {route["timeout"] for route in forwarding} == {"0s"}


def test_a_refusal_says_what_the_balancer_says_and_does_not_ask_it() -> None:
    bodies = {}
    for route in routes():
        if "direct_response" in route:
            bodies[route["name"]] = route["direct_response"]["body"]["inline_string"]
            assert route["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["disabled"] is True
    assert bodies["grpc_per_server"] == picker.PER_SERVER
    assert json.loads(bodies["rest_per_server"]) == {"error": picker.PER_SERVER}


@pytest.mark.integration
@pytest.mark.parametrize(
    "options",
    [BootstrapOptions(), EVERYTHING, UNIX, "tls", "secrets"],
    ids=["defaults", "everything", "unix", "tls", "secrets"],
)
def test_envoy_accepts_it(options: BootstrapOptions | str, tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.yaml"
    if options == "secrets":
        text, files = render_with_secrets(with_tls(tmp_path), tmp_path)
        assert sorted(files) == [
            *("balancer_authority.yaml", "client_authority.yaml", "gateway_certificate.yaml"),
            "listener_certificate.yaml",
        ]
        for name, content in files.items():
            (tmp_path / name).write_text(content)
    else:
        text = render(with_tls(tmp_path) if isinstance(options, str) else options)
    path.write_text(text)
    check_accepted(path)


def with_tls(directory: Path) -> BootstrapOptions:
    authority = Authority(directory)
    own = authority.issue("localhost", dns="localhost")
    shown = {"cert_file": str(own.cert), "key_file": str(own.key)}
    return changed(
        EVERYTHING,
        tls=EnvoyTlsSection(client_ca_file=str(authority.file), **shown),
        balancer_tls=BalancerTlsSection(ca_file=str(authority.file), server_name="localhost", **shown),
    )


def test_what_asks_is_a_listener_within_where_envoy_decides() -> None:
    native = NativeOptions(Path("/m.so"), Path("/k.so"), Path("/dev/shm/f"))
    deciding = rendered(options_of(native=native, access_log="/dev/stdout"))
    asking = manager(rendered(options_of(access_log="/dev/stdout")))
    _, inner = deciding["static_resources"]["listeners"]
    first, router = manager(deciding)["http_filters"]
    module = first["typed_config"]
    assert module["dynamic_module_config"]["module"] == {"local": {"filename": "/m.so"}}
    assert module["filter_config"]["value"] == "/k.so\n/dev/shm/f\nmetadata"
    # The module sees answers end; where the balancer is asked, it is told.
    assert set(asking["http_filters"][-1]["typed_config"]) - set(router["typed_config"]) == {
        "upstream_log",
        "upstream_log_options",
    }
    assert "address" not in inner
    assert inner["internal_listener"] == {}
    within = manager_of(inner)
    assert within["http_filters"][:-1] == asking["http_filters"][:-1]
    assert within["route_config"] == asking["route_config"]
    (log,) = within["http_filters"][-1]["typed_config"]["upstream_log"]
    assert log["typed_config"]["common_config"]["buffer_size_bytes"] == 0
    assert [log["name"] for log in within["access_log"]] == [log["name"] for log in asking["access_log"]]
    assert within["access_log"][0]["typed_config"]["common_config"]["buffer_size_bytes"] == 0
    (way_in, *routes) = routes_of(manager(deciding))
    assert way_in["route"]["cluster"] == inner["name"]
    assert [route["match"] for route in routes] == [route["match"] for route in routes_of(asking)]
    assert [log["name"] for log in manager(deciding)["access_log"]] == ["envoy.access_loggers.file"]
    for cluster in deciding["static_resources"]["clusters"][:2]:
        (policy,) = cluster["load_balancing_policy"]["policies"]
        (left,) = policy["typed_extension_config"]["typed_config"]["fallback_policy"]["policies"]
        assert (
            left["typed_extension_config"]["typed_config"]["dynamic_module_config"] == module["dynamic_module_config"]
        )


@pytest.mark.parametrize("traced", [True, False])
def test_the_balancer_gets_traces_only_where_there_are_any(traced: bool) -> None:
    traces = TracesSection(collector="127.0.0.1:4317") if traced else None
    with_traces = options_of(traces=traces)
    native = dataclasses.replace(with_traces, native=NativeOptions(Path("/m.so"), Path("/k.so"), Path("/run/shared")))

    def logs(listener: Any) -> dict[str, bool]:
        """Names of the logs that the balancer gets, and whether they tell the header."""
        made = [each["typed_config"] for each in manager_of(listener)["access_log"]]
        return {
            each["common_config"]["log_name"]: "traceparent" in each["additional_request_headers_to_log"]
            for each in made
        }

    outer, asking = rendered(native)["static_resources"]["listeners"]
    assert logs(rendered(with_traces)["static_resources"]["listeners"][0]) == {"outcomes": traced}
    assert logs(asking) == {"outcomes": traced}
    assert logs(outer) == ({"traced": True} if traced else {})


def test_metadata_is_for_a_log_alone() -> None:
    """Each request would pay for it."""
    native = NativeOptions(Path("/m.so"), Path("/k.so"), Path("/dev/shm/f"))
    module = manager(rendered(BootstrapOptions(native=native)))["http_filters"][0]["typed_config"]
    assert module["filter_config"]["value"] == "/k.so\n/dev/shm/f\n"


def test_tls_of_clients_ends_at_the_outer_listener() -> None:
    native = NativeOptions(Path("/m.so"), Path("/k.so"), Path("/dev/shm/f"))
    tls = EnvoyTlsSection(cert_file="/c.pem", key_file="/k.pem")
    outer, inner = rendered(options_of(native=native, tls=tls))["static_resources"]["listeners"]
    assert "transport_socket" in outer["filter_chains"][0]
    assert "transport_socket" not in inner["filter_chains"][0]


def test_inferences_go_to_the_balancer_where_it_forwards_and_all_else_as_before() -> None:
    forwarding, asking = (rendered(options_of(frontend=frontend)) for frontend in ("proxy", "pick"))
    (there, here) = (routes_of(manager(each)) for each in (forwarding, asking))
    # What is forwarded comes before what is asked about with its body.
    assert [route["name"] for route in there[:4]] == ["proxied", "proxied", "proxied", "grpc_compressed"]
    assert here[0] == there.pop(3)
    held = there.pop(0)
    assert (held["match"]["path"], held["match"]["headers"][0]["name"]) == (INFER, "grpc-encoding")
    buffered = held["typed_per_filter_config"].pop("envoy.filters.http.buffer")["buffer"]
    assert held["typed_per_filter_config"] == there[0]["typed_per_filter_config"]
    assert buffered == {"max_request_bytes": BootstrapOptions().envoy.request_buffer_limit_bytes}
    changed = [new for new, old in zip(there, here[1:], strict=True) if new != old]
    assert {each["match"]["path"].rpartition("/")[2] for each in changed} == {"ModelInfer", "ModelStreamInfer"}
    assert {each["route"]["cluster"] for each in changed} == {"proxy"}
    for each in changed:
        assert {name.rpartition(".")[2] for name in each["typed_per_filter_config"]} == {
            "ext_proc",
            "grpc_field_extraction",
        }
    *filters, buffer, router = manager(forwarding)["http_filters"]
    assert buffer["disabled"]
    assert filters == manager(asking)["http_filters"][:-1]
    (log,) = router["typed_config"]["upstream_log"]
    assert "proxied" in str(log["filter"]["and_filter"]["filters"][0])
    *rest, ours, either, around = forwarding["static_resources"]["clusters"]
    assert (ours["name"], either["name"], around["name"]) == ("proxy_grpc", "proxy", "around")
    assert either["cluster_type"]["typed_config"]["clusters"] == ["proxy_grpc", "around"]
    assert rest == asking["static_resources"]["clusters"]


def test_words_of_a_triton_that_drains_are_the_proxys_too() -> None:
    retriable = manager(yaml.safe_load(template()))["route_config"]["virtual_hosts"][0]["retry_policy"]
    matches = [header["string_match"] for header in retriable["retriable_headers"]]
    assert matches == [*({"contains": text} for text in NOT_EXECUTED_TEXTS), {"exact": NOT_TAKEN}]


@pytest.mark.parametrize("known", [False, True])
def test_envoy_follows_the_last_known_endpoints_where_they_are_there(known: bool) -> None:
    folder = Path("/var/lib/e") if known else None
    native = NativeOptions(Path("/m.so"), Path("/k.so"), Path("/dev/shm/f"), folder)
    clusters = {
        each["name"]: each for each in rendered(BootstrapOptions(native=native))["static_resources"]["clusters"]
    }
    for name, file in (("triton_grpc", "endpoints-grpc.pb"), ("triton_http", "endpoints-http.pb")):
        source = clusters[name]["eds_cluster_config"]["eds_config"]
        assert ("ads" in source) is not known
        assert source.get("path_config_source") == ({"path": f"/var/lib/e/{file}"} if known else None)
