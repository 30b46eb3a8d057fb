"""When two simulators did the same."""

from __future__ import annotations

import numpy as np

from simulator.result import Result

EXACT = ("arrival_s", "picked", "attempts", "worker", "status", "latency_s", "first_s", "executions")
ROUNDED = ("pending_integral_s", "end_s", "busy_s")


def assert_equal(engine: Result, plain: Result, e: int = 0) -> None:
    """Environment `e` of the engine's and the only one of the other, bit for bit but for sums over the run."""
    one = slice(e, e + 1)
    for name in EXACT:
        np.testing.assert_array_equal(getattr(engine, name)[one], getattr(plain, name), err_msg=name, strict=True)
    for name in ROUNDED:
        found, expected = getattr(engine, name)[one], getattr(plain, name)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=name)
