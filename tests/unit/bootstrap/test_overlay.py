"""What an overlay adds to the bootstrap, and what it is refused for."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.bootstrap import changed, check_accepted, options_of
from support.certificates import Authority

from balancer.bootstrap.bootstrap import BootstrapOptions, render, render_with_secrets, write_secrets
from balancer.bootstrap.nodes import manager_of, routes_of
from balancer.bootstrap.sections import (
    ApiKeysSection,
    AuditLogSection,
    JwtSection,
    LocalRateLimitSection,
    RateLimitSection,
    TracesSection,
)
from balancer.cli.main import main
from balancer.files.yaml_document import ConfigError

EXAMPLES = Path(__file__).parents[3] / "docs" / "operate" / "overlay"
JWT = JwtSection(issuer="issuer", audiences=("inference",), jwks_url="https://issuer.example/keys")
SWITCHES = {
    "access-log": options_of(access_log="/dev/stdout", audit_log=AuditLogSection(file="/dev/stdout")),
    "jwt": options_of(jwt=JWT),
    "limits": options_of(
        jwt=JWT,
        local_rate_limit=LocalRateLimitSection(per="tenant", requests=100),
        rate_limit=RateLimitSection(per="tenant", service="limits.example:8081"),
    ),
    "traces": options_of(traces=TracesSection(collector="127.0.0.1:4317")),
}
"""What each example is laid over."""
PICKS = "envoy.filters.http.ext_proc"


def manager(bootstrap: Any) -> Any:
    return manager_of(bootstrap["static_resources"]["listeners"][0])


def over(content: Any) -> Any:
    """An overlay of the connection manager, in full."""
    name = "envoy.filters.network.http_connection_manager"
    chain = {"name": "inference", "filters": [{"name": name, "typed_config": content}]}
    return {"static_resources": {"listeners": [{"name": "inference", "filter_chains": [chain]}]}}


def merged(folder: Path, content: Any, options: BootstrapOptions | None = None) -> Any:
    file = folder / "overlay.yaml"
    file.write_text(yaml.safe_dump(content))
    return yaml.safe_load(render(changed(options or BootstrapOptions(), overlay=str(file))))


def test_every_example_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.iterdir()} == SWITCHES.keys()


@pytest.mark.integration
@pytest.mark.parametrize("name", SWITCHES)
def test_envoy_accepts_each_example(tmp_path: Path, name: str) -> None:
    """With real files in the place of /etc/envoy."""
    authority = Authority(tmp_path)
    own = authority.issue("envoy", dns="envoy")
    text = (EXAMPLES / f"{name}.yaml").read_text()
    for path, file in {"ca.pem": authority.file, "limits.crt": own.cert, "limits.key": own.key}.items():
        text = text.replace(f"/etc/envoy/{path}", str(file)).replace(f"/etc/envoy/idp-{path}", str(file))
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(text)
    bootstrap, files = render_with_secrets(changed(SWITCHES[name], overlay=str(overlay)), tmp_path)
    write_secrets(tmp_path, files | {"envoy.yaml": bootstrap})
    check_accepted(tmp_path / "envoy.yaml")
    overlay = yaml.safe_load(text)
    assert overlay != {}
    assert all(leaf in _leaves(bootstrap, files) for leaf in _strings(overlay))


def _strings(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [each for value in node.values() for each in _strings(value)]
    if isinstance(node, list):
        return [each for value in node for each in _strings(value)]
    return [node] if isinstance(node, str) else []


def _leaves(bootstrap: str, files: dict[str, str]) -> set[str]:
    return {each for text in (bootstrap, *files.values()) for each in _strings(yaml.safe_load(text))}


def test_all_but_what_it_says_stays_and_a_new_filter_stands_behind_who_may_pass(tmp_path: Path) -> None:
    mine = {"name": "mine", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors"}}
    route = {"name": "own", "match": {"path": "/own"}, "direct_response": {"status": 200}}
    content = over(
        {
            "request_timeout": "20s",
            "http_filters": [mine],
            "route_config": {"virtual_hosts": [{"name": "inference", "routes": [route]}]},
        }
    )
    plain = yaml.safe_load(render(options_of(jwt=JWT)))
    found = merged(tmp_path, content, options_of(jwt=JWT))
    was, now = manager(plain), manager(found)
    assert [each["name"] for each in now["http_filters"]][:5] == [
        *("envoy.filters.http.jwt_authn", "envoy.filters.http.header_mutation", "envoy.filters.http.rbac", "mine"),
        "envoy.filters.http.grpc_field_extraction",
    ]
    assert now["request_timeout"] == "20s"
    assert routes_of(now).pop(0) == route
    now["http_filters"].remove(mine)
    now["request_timeout"] = was["request_timeout"]
    assert found == plain


def test_what_the_template_shares_is_changed_where_it_is_named_alone(tmp_path: Path) -> None:
    plain = yaml.safe_load(render(BootstrapOptions()))["static_resources"]["clusters"]
    content = {"static_resources": {"clusters": [{"name": "triton_grpc", "outlier_detection": {"interval": "9s"}}]}}
    first, *rest = merged(tmp_path, content)["static_resources"]["clusters"]
    assert first["outlier_detection"]["interval"] == "9s"
    assert rest == plain[1:]


def test_a_filter_in_a_file_of_its_own_is_changed_there(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("acme: acme-acme-acme-acme\n")
    overlay = tmp_path / "overlay.yaml"
    typed = {"key_sources": [{"header": "x-own"}]}
    overlay.write_text(
        yaml.safe_dump(over({"http_filters": [{"name": "envoy.filters.http.api_key_auth", "typed_config": typed}]}))
    )
    options = options_of(api_keys=ApiKeysSection(file=str(keys)), overlay=str(overlay))
    bootstrap, files = render_with_secrets(options, tmp_path)
    (filter_,) = yaml.safe_load(files["envoy.filters.http.api_key_auth.yaml"])["resources"]
    assert filter_["typed_config"]["key_sources"] == [{"header": "x-own"}]
    assert filter_["typed_config"]["forwarding"]["hide_credentials"]
    assert "x-own" not in bootstrap


@pytest.mark.parametrize(
    ("content", "field", "words"),
    [
        ({"nod": {}}, "nod", 'unknown field of Envoy\'s Bootstrap (its value is {}); did you mean "node"?'),
        ({"node": []}, "node", "[] is not allowed: must be a mapping"),
        ({"node": None}, "node", "null takes nothing away"),
        ({"node": {"id": 7}}, "node.id", "7 is not allowed: must be text"),
        ({"static_resources": {"clusters": {}}}, "static_resources.clusters", "{} is not allowed: must be a list"),
        (over({"codec_type": "HTTP9"}), "typed_config.codec_type", "must be one of AUTO, HTTP1, HTTP2, HTTP3"),
        (over({"request_timeout": 20}), "typed_config.request_timeout", "must be a duration such as 0.5s"),
        (over({"request_timeout": "-1s"}), "typed_config.request_timeout", "a duration such as 0.5s, which is not neg"),
        ({"node": {"metadata": {"a": {"b": [1.0, float("inf")]}}}}, "metadata.a.b[1]", "inf is not allowed: must be a"),
        ({"node": {"metadata": {"a": float("nan")}}}, "node.metadata.a", "nan is not allowed: must be a finite number"),
        (over({"generate_request_id": 1}), "typed_config.generate_request_id", "must be true or false"),
        (over({"access_log": [{"name": "x", "typed_config": {}}]}), "access_log[0].typed_config", 'needs "@type"'),
        (
            over({"http_filters": [{"name": "x", "typed_config": {"@type": "Cors"}}]}),
            "http_filters[0].typed_config.@type",
            '"Cors" is no type of Envoy\'s API',
        ),
        (
            over({"http_filters": [{"name": PICKS, "typed_config": {"@type": "type.googleapis.com/envoy.Other"}}]}),
            "http_filters[0].typed_config.@type",
            "would replace type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor; add it by",
        ),
        (
            over({"http_filters": [{"name": PICKS, "disabled": True}]}),
            "http_filters[0].disabled",
            "true is not allowed: the balancer depends on this part; leave it",
        ),
        (
            over({"early_header_mutation_extensions": [{"name": "x"}, {"y": 1}]}),
            "early_header_mutation_extensions",
            "would replace the bootstrap's, of 1 that the balancer depends on",
        ),
        (
            over({"access_log": []}),
            "access_log",
            "would replace the bootstrap's, of 1 that the balancer depends on",
        ),
        (
            over({"route_config": {"virtual_hosts": [{"name": "inference", "routes": [{"name": "grpc"}]}]}}),
            "routes[0]",
            'the bootstrap has 12 of the name "grpc", so none is meant',
        ),
        (
            {"static_resources": {"clusters": [{"name": "triton_grpc", "type": "STATIC"}]}},
            "clusters[0].type",
            "the balancer depends on this part",
        ),
        (
            {"static_resources": {"clusters": [{"name": "triton_grpc", "cluster_type": {"name": "x"}}]}},
            "clusters[0].cluster_type",
            "stands beside type, which the bootstrap has; Envoy takes one of both",
        ),
    ],
)
def test_what_does_not_fit_is_named_by_file_place_and_remedy(
    tmp_path: Path, content: Any, field: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        merged(tmp_path, content)
    assert str(refused.value).startswith(f"{tmp_path}/overlay.yaml:")
    assert f"{field}: " in str(refused.value)
    assert words in str(refused.value)


def test_the_commands_say_it_too(tmp_path: Path) -> None:
    config = tmp_path / "balancer.yaml"
    config.write_text("envoy: {overlay: overlay.yaml}\n")
    (tmp_path / "overlay.yaml").write_text("node:\n  idd: west\n")
    for command in ("envoy", "check"):
        refused = CliRunner().invoke(main, [command, str(config)])
        assert refused.exit_code == 1
        assert f'{tmp_path}/overlay.yaml:2: node.idd: unknown field of Envoy\'s Node (its value is "west")' in (
            refused.output
        )
    (tmp_path / "overlay.yaml").write_text("node: {id: west}\n")
    printed = CliRunner().invoke(main, ["envoy", str(config)])
    assert yaml.safe_load(printed.output.partition("# Printed")[2].partition("\n")[2])["node"]["id"] == "west"
