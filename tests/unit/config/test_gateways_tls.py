"""The certificate of the listener for other gateways is one of two."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.config.config import from_mapping
from balancer.files.yaml_document import ConfigError


@pytest.mark.parametrize("tls", [{"self_signed": True}, {"cert_file": "a.crt", "key_file": "a.key"}])
def test_one_of_two(tls: dict[str, Any]) -> None:
    assert from_mapping({"tls": {"gateways": tls}}).tls.gateways is not None


@pytest.mark.parametrize(
    "tls", [{}, {"cert_file": "a.crt"}, {"self_signed": True, "cert_file": "a", "key_file": "b"}, {"key_file": "a.key"}]
)
def test_neither_or_both_are_refused_with_the_remedy(tls: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"tls\.gateways\.self_signed.*set self_signed: true, or both cert_file and"):
        from_mapping({"tls": {"gateways": tls}})


def test_its_port_is_its_own() -> None:
    with pytest.raises(ConfigError, match=r"listen\.\w+: .* port 9002 is needed for listen\.envoy"):
        from_mapping({"listen": {"gateways": "127.0.0.1:9002"}})
