"""Which listeners are warned of: those that other machines reach without showing who they are."""

from pathlib import Path

import pytest

from balancer.config import config
from balancer.server.security import listeners

EXAMPLE = Path(__file__).parents[4] / "deploy" / "balancer.yaml"
MUTUAL = "{cert_file: a, key_file: b, client_ca_file: c}"


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "listen: {envoy: '[::1]:9002', reports: 'localhost:9102', admin: 127.1.2.3:8090}",
        "listen: {envoy: unix:/e, reports: unix:/r}",
        f"listen: {{reports: 0.0.0.0:9102}}\ntls: {{reports: {MUTUAL}}}",
        f"listen: {{admin: 0.0.0.0:8090}}\ntls: {{admin: {MUTUAL}}}",
        "listen: {admin: 0.0.0.0:8090}\nadmin: {token_file: t}",
    ],
)
def test_no_warning(content: str) -> None:
    assert listeners.warnings(config.parse(content, "f")) == []


def test_sample_is_safe_by_default() -> None:
    assert listeners.warnings(config.load(EXAMPLE)) == []


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (
            "listen: {envoy: 0.0.0.0:9002}",
            ["listen.envoy: 0.0.0.0:9002 is", "forge outcomes", "set tls.envoy"],
        ),
        (
            "listen: {reports: '[::]:9102'}",
            ["listen.reports: [::]:9102 is", "any worker's name", "set tls.reports"],
        ),
        (
            "listen: {admin: 10.0.0.1:8090}",
            ["listen.admin: 10.0.0.1:8090 is", "set tls.admin", "admin.token_file"],
        ),
        ("listen: {admin: gateway:8090}", ["listen.admin: gateway:8090 is open"]),
        (
            "envoy: {admin: 0.0.0.0:9901}",
            ["envoy.admin: 0.0.0.0:9901 is", "stop and reconfigure Envoy", "127.0.0.1"],
        ),
    ],
)
def test_warning_names_listener_harm_and_remedy(content: str, texts: list[str]) -> None:
    (warning,) = listeners.warnings(config.parse(content, "f"))
    for text in texts:
        assert text in warning
