"""The listener for other gateways: its certificate is one of two, its port is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from balancer.config.config import from_mapping, parse
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


def test_the_chapters_config_fits_and_would_not_if_the_picks_of_envoy_stayed_where_they_are() -> None:
    chapter = Path(__file__).parents[3] / "docs" / "operate" / "gateways.md"
    text = chapter.read_text().split("```yaml\n")[1].split("```")[0]
    assert parse(text, "gateways.md").listen.gateways == "0.0.0.0:9002"
    without = "".join(line for line in text.splitlines(keepends=True) if "  envoy: " not in line)
    for moved in (without, without.replace("9002", "9001")):
        with pytest.raises(ConfigError, match=r"listen\.\w+: .* is needed for listen\.envoy, which takes 9002 to 9003"):
            parse(moved, "gateways.md")
