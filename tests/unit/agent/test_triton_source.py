"""How often an agent asks Triton for its statistics."""

import pytest

from balancer.agent.triton_source import statistics_pause_s


@pytest.mark.parametrize(
    ("took_ms", "pause_ms"),
    [(0.0, 20.0), (1.0, 20.0), (2.0, 38.0), (10.0, 190.0), (100.0, 250.0)],
)
def test_statistics_are_asked_for_a_twentieth_of_the_time_fifty_times_a_second_at_most(
    took_ms: float, pause_ms: float
) -> None:
    assert statistics_pause_s(1e-3 * took_ms) == pytest.approx(1e-3 * pause_ms)
