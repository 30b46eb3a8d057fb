"""When two simulators did the same, and when one did what was worked out by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from policies import Policy
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.result import Result
from simulator.spec import FleetSpec

EXACT = ("arrival_s", "picked", "attempts", "worker", "status", "latency_s", "first_s", "executions")
PROMPTS = ("prompt_tokens", "cached_tokens", "matched_tokens")
ROUNDED = ("pending_integral_s", "end_s", "busy_s")


def run_engine(batch: Batch, policy: Policy, compiled: bool = True) -> None:
    """To its end: inside the engine where the policy can decide there, else step by step."""
    if not compiled or not batch.run_inside(policy):
        waiting = batch.start()
        while waiting:
            waiting = batch.step(batch.draw(batch.probabilities(policy)))


def assert_equal(engine: Result, plain: Result, e: int = 0) -> None:
    """Environment `e` of the engine's and the only one of the other, bit for bit but for sums over the run."""
    one = slice(e, e + 1)
    for name in EXACT + PROMPTS:
        np.testing.assert_array_equal(getattr(engine, name)[one], getattr(plain, name), err_msg=name, strict=True)
    for name in ROUNDED:
        found, expected = getattr(engine, name)[one], getattr(plain, name)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=name)


def example(name: str, fleet: FleetSpec, arrivals: Arrivals, **expected: Any) -> Any:
    """A parameter of a test that ends with `assert_told(result, expected)`."""
    return pytest.param(fleet, arrivals, expected, id=name)


def assert_told(result: Result, expected: Mapping[str, Any]) -> None:
    """Columns of the result by name; `ms`: latencies in milliseconds."""
    for name, values in expected.items():
        found = result.latency_s[0] * 1e3 if name == "ms" else getattr(result, name)[0]
        assert found.tolist() == pytest.approx(values, abs=1e-6, nan_ok=True), name
