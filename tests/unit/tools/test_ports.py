"""Free ports, and the range that they are looked for in."""

from __future__ import annotations

import pytest

from tools.stack import ports
from tools.stack.ports import free_port_range, free_ports


def test_no_port_is_given_twice() -> None:
    found = [*free_ports(20), *free_ports(20), free_port_range(1)]
    assert len(set(found)) == len(found)


def test_ports_are_of_the_range_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = 30_000, 30_499
    monkeypatch.setenv(ports.ALLOWED, f"{first}-{last}")
    assert all(first <= port <= last for port in free_ports(50))
    assert first <= free_port_range(3) <= last - 2


def test_a_range_without_enough_free_ports_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.ALLOWED, "30500-30501")
    with pytest.raises(OSError, match="of 3 free ports"):
        free_ports(3)
