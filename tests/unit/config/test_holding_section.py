from __future__ import annotations

import math

import pytest

from balancer.config import config
from balancer.core.settings import HeldModel, HoldingSettings
from balancer.files.yaml_document import ConfigError


def test_nobody_waits_by_default() -> None:
    found = config.parse("policy: wlpr\n", "balancer.yaml")
    assert found.settings().holding == HoldingSettings()
    assert found.bootstrap_options().longest_answer_s == 0


def test_every_field_reaches_the_core_and_envoy_waits_for_as_long() -> None:
    text = """
holding:
  models: {encoder: {window_batches: 0, forming: false}, writer: {}}
  order: fair
  detour: null
  default_deadline_s: 2
  longest_wait_s: 3
  max_requests: 4
  max_bytes: 5KiB
  max_s: 6
  overflow: place
  weights: {acme: 7}
"""
    found = config.parse(text, "balancer.yaml")
    assert found.settings().holding == HoldingSettings(
        models={"encoder": HeldModel(0.0, forming=False), "writer": HeldModel()},
        order="fair",
        detour=math.inf,
        default_deadline_s=2,
        longest_wait_s=3,
        max_requests=4,
        max_bytes=5 * 1024,
        max_s=6,
        overflow="place",
        weights={"acme": 7},
    )
    assert 6 < found.bootstrap_options().longest_answer_s < 7


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("holding: {order: random}", "holding.order"),
        ("holding: {max_s: 301}", "holding.max_s"),
        ("holding: {detour: 0.5}", "holding.detour"),
        ("holding: {models: {m: {window_batches: -1}}}", "holding.models.m.window_batches"),
        ("holding: {weights: {acme: 0}}", "holding.weights.acme"),
        ("holding: {models: {m: {}}}\nenvoy: {frontend: native}", "envoy.frontend"),
    ],
)
def test_what_does_not_fit_is_named(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        config.parse(line + "\n", "balancer.yaml")
