import numpy as np

from simulator.engine.tables import service_table
from simulator.spec import ServiceTime


def test_measured_points_are_met_and_joined_by_lines() -> None:
    device_s, host_s = service_table(ServiceTime((2, 4), (1.0, 3.0), (0.5, 0.25)), most_rows=4)

    assert device_s.tolist() == [1.0, 1.0, 1.0, 2.0, 3.0]
    assert host_s.tolist() == [0.5, 0.5, 0.5, 0.375, 0.25]


def test_beyond_the_last_point_its_line_goes_on() -> None:
    device_s, _ = service_table(ServiceTime((1, 2, 4), (1.0, 5.0, 6.0)), most_rows=8)

    assert device_s[5:].tolist() == [6.5, 7.0, 7.5, 8.0]


def test_a_single_point_is_constant_and_no_host_seconds_are_zero() -> None:
    device_s, host_s = service_table(ServiceTime((4,), (0.25,)), most_rows=8)

    assert np.all(device_s == 0.25)
    assert np.all(host_s == 0.0)
    assert len(device_s) == len(host_s) == 9
