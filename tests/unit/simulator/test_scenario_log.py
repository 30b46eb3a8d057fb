"""A scenario over what a balancer recorded."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from support.decision_logs import recorded

from balancer.errors import OperatorError
from policies.round_robin import RoundRobin
from simulator.scenario import load_scenario

SCENARIO = """\
summary: what was recorded
split: held-out
fleet:
  models:
    bert: {device_ms: {"*": {1: 5, 8: 10}}, batching: {max_batch_rows: 8}}
    tft: {device_ms: {"*": {1: 5, 8: 10}}, batching: {max_batch_rows: 8}}
  workers: [{count: 2}]
workload:
  rate_per_s: 100
  arrivals: {log: {path: LOG}}
  models: {bert: {}, tft: {}}
"""


def test_the_recorded_requests_are_the_workload(tmp_path: pathlib.Path) -> None:
    recorded(tmp_path / "log", RoundRobin())
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("LOG", "log"))
    arrivals = load_scenario(str(tmp_path / "s.yaml")).arrivals(seed=0, requests=200)
    assert len(arrivals) == 200
    assert set(np.unique(arrivals.model)) == {0, 1}
    # Scaled to the rate that was asked for.
    assert 199 / arrivals.time_s[-1] == pytest.approx(100, rel=0.5)


def test_a_missing_log_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("LOG", "nowhere"))
    with pytest.raises(OperatorError, match=r"workload\.arrivals\.log: decision log 'nowhere'"):
        load_scenario(str(tmp_path / "s.yaml"))
