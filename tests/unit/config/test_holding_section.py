import math

import pytest
import yaml

from balancer.bootstrap.bootstrap import render
from balancer.bootstrap.nodes import manager_of
from balancer.config import config
from balancer.config.frontend import bootstrap_options
from balancer.config.placing import MOST_HELD_S
from balancer.extproc import names
from balancer.extproc.picker import longest_answer_s
from balancer.kernel.settings import HeldModel, HoldingSettings


def test_nobody_waits_by_default() -> None:
    found = config.parse("policy: wlpr\n", "balancer.yaml")
    assert found.settings().holding == HoldingSettings()
    # Whatever is configured later, Envoy waits for as long as the balancer then asks.
    bootstrap = yaml.safe_load(render(bootstrap_options(found)))
    manager = manager_of(bootstrap["static_resources"]["listeners"][0])
    (picks,) = (each for each in manager["http_filters"] if each["name"] == names.PICKS_FILTER)
    most_s = float(picks["typed_config"]["max_message_timeout"].removesuffix("s"))
    assert most_s == pytest.approx(longest_answer_s(MOST_HELD_S))


def test_every_field_reaches_the_core() -> None:
    text = """
holding:
  models: {encoder: {window_batches: 0}, writer: {}}
  order: fair
  detour: null
  max_requests: 4
  max_s: 6
  overflow: place
  weights: {acme: 7}
"""
    found = config.parse(text, "balancer.yaml")
    assert found.settings().holding == HoldingSettings(
        models={"encoder": HeldModel(0.0), "writer": HeldModel()},
        order="fair",
        detour=math.inf,
        max_requests=4,
        max_s=6,
        overflow="place",
        weights={"acme": 7},
    )
