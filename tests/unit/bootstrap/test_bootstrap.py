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
from balancer.extproc import names, picker
from balancer.extproc.names import NOT_EXECUTED_TEXTS, NOT_TAKEN

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


def test_names_of_models_are_no_code() -> None:
    some = options_of(forwarded=("a.b", 'c"\\'))
    filters = manager_of(yaml.safe_load(render(some))["static_resources"]["listeners"][0])["http_filters"]
    (marks,) = [each["typed_config"] for each in filters if each["name"] == names.FORWARDED_FILTER]
    models = marks["default_source_code"]["inline_string"].splitlines()[0]
    assert models == r'local models = {["\097\046\098"] = true, ["\099\034\092"] = true}'
    native = options_of(forwarded=("a.b", "ü\n"), native=NativeOptions(Path("/m.so"), Path("/k.so"), Path("/f")))
    module = manager_of(yaml.safe_load(render(native))["static_resources"]["listeners"][0])["http_filters"][0]
    assert module["typed_config"]["filter_config"]["value"] == "/k.so\n/f\n\n3:a.b3:ü\n"


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
