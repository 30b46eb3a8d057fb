import pytest

from balancer.agent.triton_source import ExecutingEstimate

TICK_S = 0.02


def test_two_instances_always_busy_with_batches_of_four_are_eight_executing() -> None:
    """Each batch takes 40 ms and ends on every second tick, at each instance in turn."""
    estimate = ExecutingEstimate()
    values = []
    for tick in range(100):
        finished = tick * 4
        values.append(estimate.observe(tick * TICK_S, finished * 40e3, finished, at_most=8))
    assert values[0] == 0.0
    assert values[50:] == pytest.approx([8.0] * 50)


def test_long_services_are_averaged_over_several_of_them() -> None:
    """One request at a time of 0.4 s: the counter stands still for 20 ticks and then jumps."""
    estimate = ExecutingEstimate()
    values = []
    for tick in range(400):
        finished = tick * TICK_S // 0.4
        values.append(estimate.observe(tick * TICK_S, finished * 0.4e6, finished, at_most=4))
    assert min(values[200:]) > 0.7
    assert max(values[200:]) < 1.3


def test_what_stopped_counts_no_more_after_the_window() -> None:
    estimate = ExecutingEstimate()
    for tick in range(50):
        estimate.observe(tick * TICK_S, tick * 20e3, tick, at_most=1)
    values = [estimate.observe((50 + tick) * TICK_S, 49 * 20e3, 49, at_most=1) for tick in range(20)]
    assert values[0] > 0.5
    assert values[-1] == 0.0


def test_a_jump_is_bounded_by_what_can_execute() -> None:
    estimate = ExecutingEstimate()
    estimate.observe(0.0, 0.0, 0, at_most=8)
    assert estimate.observe(TICK_S, 60e6, 8, at_most=8) == 8.0
