"""For all tests."""

import fcntl
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


@pytest.fixture(scope="session")
def compiled_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By one process, while the others wait, and then find it: each would take as long, on the same two cores."""
    from policies.expected_latency import ExpectedLatency  # noqa: PLC0415 - of the simulator's tests alone
    from simulator.run import run  # noqa: PLC0415 - as above
    from simulator.scenario import load_scenario  # noqa: PLC0415 - as above

    scenario = load_scenario("homogeneous-steady")
    with open(tmp_path_factory.getbasetemp().parent / "engine.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(scenario.fleet, [scenario.arrivals(0, 10)], ExpectedLatency(), seeds=[0])


@pytest.fixture(autouse=True)
def _engine(request: pytest.FixtureRequest) -> None:
    if _of_simulator(request.node):
        request.getfixturevalue("compiled_engine")


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
        if _of_simulator(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_COMPILES_S))


def _of_simulator(item: pytest.Item) -> bool:
    return bool({"simulation", "simulator", "experiments"} & set(item.path.parts))
