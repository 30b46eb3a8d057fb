"""For all tests."""

from __future__ import annotations

import pytest

_COMPILES_S = 1200
"""Whichever test comes first to the engine compiles it, which may take minutes on a machine that is busy."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("support.sharing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_simulator = {"simulation", "simulator", "training", "experiments"} & set(item.path.parts)
        if of_simulator and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_COMPILES_S))
