"""What the bootstrap asks of clients, and what it says of files that it cannot use."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.bootstrap import check_accepted, options_of
from support.certificates import Authority
from support.tokens import Issuer

from balancer.bootstrap.access import MOST_KEYS, read_jwks, read_keys
from balancer.bootstrap.bootstrap import BootstrapOptions, render_with_secrets, write_secrets
from balancer.bootstrap.native import NativeOptions
from balancer.bootstrap.nodes import manager_of
from balancer.bootstrap.sections import (
    ApiKeysSection,
    AuditLogSection,
    EnvoyTlsSection,
    JwtSection,
    LocalRateLimitSection,
    RateLimitSection,
    TritonTlsSection,
)
from balancer.cli import main as cli
from balancer.errors import OperatorError

KEY = "acme-acme-acme-acme"


def everything(folder: Path, native: bool, tokens: bool) -> BootstrapOptions:
    """Each switch on; `tokens`: published at a URL, in place of API keys."""
    authority = Authority(folder)
    own = authority.issue("envoy", dns="envoy")
    files = {"ca_file": str(authority.file), "cert_file": str(own.cert), "key_file": str(own.key)}
    keys = folder / "api-keys.yaml"
    keys.write_text(f"acme: {KEY}\n")
    jwt = JwtSection(issuer="issuer", audiences=("inference",), jwks_url="https://issuer.example/keys")
    return options_of(
        audit_log=AuditLogSection(file="/dev/stdout"),
        triton_tls=TritonTlsSection(server_name="server.example", **files),
        tls=EnvoyTlsSection(cert_file=files["cert_file"], key_file=files["key_file"], client_ca_file=files["ca_file"]),
        jwt=jwt if tokens else None,
        jwks_ca=authority.file,
        api_keys=None if tokens else ApiKeysSection(file=str(keys)),
        open_health=True,
        local_rate_limit=LocalRateLimitSection(per="tenant", requests=10, every_s=0.5),
        rate_limit=RateLimitSection(per="address", service="limits.example:8081"),
        native=NativeOptions(folder / "module.so", folder / "kernel.so", folder / "shared") if native else None,
    )


def written(options: BootstrapOptions, folder: Path) -> tuple[Path, Any]:
    """The bootstrap's file beside those of its secrets, and what it says."""
    text, files = render_with_secrets(options, folder)
    write_secrets(folder, files | {"bootstrap.yaml": text})
    return folder / "bootstrap.yaml", yaml.safe_load(text)


@pytest.mark.integration
@pytest.mark.parametrize("tokens", [True, False])
def test_envoy_accepts_all_of_it(tmp_path: Path, tokens: bool) -> None:
    path, _ = written(everything(tmp_path, native=False, tokens=tokens), tmp_path)
    check_accepted(path)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("tokens", [True, False])
def test_clients_are_asked_first_and_where_they_come_in_and_nowhere_else(
    tmp_path: Path, native: bool, tokens: bool
) -> None:
    _, bootstrap = written(everything(tmp_path, native, tokens), tmp_path)
    outer, *inner = [
        [each["name"] for each in manager_of(listener)["http_filters"]]
        for listener in bootstrap["static_resources"]["listeners"]
    ]
    first_filter = "envoy.filters.http.jwt_authn" if tokens else "envoy.filters.http.api_key_auth"
    guards = [
        first_filter,
        *(f"envoy.filters.http.{each}" for each in ("header_mutation", "rbac", "local_ratelimit", "ratelimit")),
    ]
    assert outer[:5] == guards
    assert len(inner) == native
    assert not any(name in guards for names in inner for name in names)


def test_keys_are_in_a_file_for_owner_and_group_and_not_in_the_bootstrap(tmp_path: Path) -> None:
    path, _ = written(everything(tmp_path, native=False, tokens=False), tmp_path)
    secret = tmp_path / "envoy.filters.http.api_key_auth.yaml"
    assert KEY not in path.read_text()
    assert KEY in secret.read_text()
    assert secret.stat().st_mode & 0o777 == 0o640


def test_the_command_prints_no_key_and_says_how_to_go_on(tmp_path: Path) -> None:
    config = tmp_path / "balancer.yaml"
    config.write_text("envoy: {api_keys: {file: api-keys.yaml}}\n")
    (tmp_path / "api-keys.yaml").write_text(f"acme: {KEY}\n")
    refused = CliRunner().invoke(cli.main, ["envoy", str(config)])
    assert refused.exit_code == 1
    assert "envoy.api_keys: no key stands in a bootstrap; name a folder for them with --secrets" in refused.output
    done = CliRunner().invoke(cli.main, ["envoy", str(config), "--secrets", str(tmp_path / "secrets")])
    assert done.exit_code == 0
    checked = CliRunner().invoke(cli.main, ["check", str(config)])
    assert checked.exit_code == 0
    (tmp_path / "api-keys.yaml").write_text(f"acme: [{KEY}, short]\n")
    bad = CliRunner().invoke(cli.main, ["check", str(config)])
    assert bad.exit_code == 1
    assert "envoy.api_keys.file: " in bad.output
    for output in (refused.output, done.output, checked.output, bad.output):
        assert KEY not in output
        assert "short" not in output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}\n", "has no key; write `CLIENT: KEY`"),
        (f"acme: {KEY}\nother: {KEY}\n", "other has a key of acme; give each key once"),
        ("acme: 1234567890123456\n", "acme needs a key, or a list of keys, of 16 to 256 visible ASCII characters"),
        ("acme: []\n", "acme needs a key"),
        ("acme: {a: b}\n", "acme needs a key"),
        ("acme: 'sixteen letters and spaces'\n", "acme needs a key"),
        ('acme: "sixteen-letters-\\nx"\n', "acme needs a key"),
        ('"a\\nb": sixteen-letters-x\n', "a client's name has 1 to 128 letters"),
        (f"{KEY}\n", "is no mapping of clients to keys"),
        (f"acme: [{KEY}\n", "is no mapping of clients to keys"),
        (f"acme: {KEY}\nacme: {KEY}x\n", "api-keys.yaml:2: is no mapping of clients to keys"),
        ("".join(f"c{i}: key-of-client-{i:06}\n" for i in range(MOST_KEYS + 1)), "are more than 10000"),
    ],
)
def test_a_file_of_keys_is_refused_without_telling_a_key(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "api-keys.yaml"
    file.write_text(content)
    with pytest.raises(OperatorError) as refused:
        read_keys(file)
    assert message in str(refused.value)
    assert KEY not in str(refused.value)


def test_a_client_may_have_two_keys_while_one_takes_the_other_s_place(tmp_path: Path) -> None:
    file = tmp_path / "api-keys.yaml"
    file.write_text(f"acme: [{KEY}, {KEY}-2]\nother: {KEY}-3\n")
    assert read_keys(file) == [("acme", KEY), ("acme", f"{KEY}-2"), ("other", f"{KEY}-3")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no JWKS"),
        ("[]", "is no JWKS"),
        ('{"keys": [{}]}', "is no JWKS"),
        ("[" * 100_000, "is no JWKS"),
        ('{"keys": []}', "has no key"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "a key is symmetric"),
    ],
)
def test_a_file_that_is_no_jwks_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(content)
    with pytest.raises(OperatorError) as refused:
        read_jwks(file)
    assert message in str(refused.value)
    assert "c2VjcmV0" not in str(refused.value)


def test_an_issuer_s_keys_are_taken_as_they_are(tmp_path: Path) -> None:
    issuer = Issuer()
    assert read_jwks(issuer.write(tmp_path / "jwks.json")) == issuer.jwks()
