"""For all tests."""

import os
import sys
import tempfile

import pytest
from support.by_path import load

from balancer.config import frontend

if "dev" not in sys.modules:
    load("dev/__init__.py", "dev")
_COMPILES_S = 1200
"""Whichever test comes first to the engine compiles it, which may take minutes on a machine that is busy."""


@pytest.fixture(autouse=True)
def _shares_no_memory_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Balancers in the test's process have no Envoy: `envoy.frontend: auto` is pick there."""
    monkeypatch.setattr(frontend, "_missing", lambda: "this is a test")


def pytest_configure(config: pytest.Config) -> None:
    # What balancers decide in tests is nothing to go on with in the next.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="balancer-state-")
    if config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("support.sharing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_simulator = {"simulation", "simulator", "experiments"} & set(item.path.parts)
        if of_simulator and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_COMPILES_S))
