"""What `balancer check` says of promises that hold for one gateway."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.config import lone
from balancer.config.config import from_mapping
from balancer.files.yaml_document import ConfigError

ONCE = {"models": {"m": {"proxy": {"once_s": 60}}, "n": {}}, "envoy": {"frontend": "proxy"}}
DNS = {"discovery": {"dns": {"name": "tritons.example"}}}


def test_ids_are_one_gateways() -> None:
    (warning,) = lone.warnings(from_mapping({**ONCE, **DNS}))
    assert warning.startswith("models.m.proxy.once_s: ")
    assert "replica" in warning


@pytest.mark.parametrize("sections", [ONCE, {**ONCE, **DNS, "envoy": {}}, {**ONCE, **DNS, "models": {"m": {}}}])
def test_who_is_alone_or_executes_nothing_once_is_not_warned(sections: dict[str, Any]) -> None:
    assert lone.warnings(from_mapping(sections)) == []


@pytest.mark.parametrize("frontend", ["native", "pick", None])
def test_some_models_are_forwarded_where_not_all_are(frontend: str | None) -> None:
    assert from_mapping({"envoy": {"frontend": frontend, "forwarded": ["m"]}}).forwards
    assert not from_mapping({"envoy": {"frontend": frontend}}).forwards
    with pytest.raises(ConfigError, match=r"envoy\.forwarded: .*m, n.* beside envoy\.frontend: proxy, .* set pick"):
        from_mapping({"envoy": {"frontend": "proxy", "forwarded": ["m", "n"]}})
    with pytest.raises(ConfigError, match=r"envoy\.forwarded: .* at most 256"):
        from_mapping({"envoy": {"frontend": frontend, "forwarded": [f"m{number}" for number in range(257)]}})
