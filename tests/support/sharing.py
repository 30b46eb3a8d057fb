"""A plugin for `pytest -n 3`: all processes but one run tests of real stacks, file by file, and one all others beside.

A stack waits most of its time, so two of them fit on two cores. What has to answer in time is hardly kept waiting by a
test that computes: the process that runs those yields to the rest. When the stacks are done, all share what is left.
"""

import fcntl
import os
import random
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from numba.core.caching import IndexDataCacheFile
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from balancer.stack import process

_OF_STACKS = ("tests/attacks/", "tests/faults/", "tests/integration/")
_FILES_OF_STACKS = ("test_real_", "test_whole_")
"""In other folders."""
_TOGETHER = ("tests/integration/kubernetes/", "tests/integration/triton/")
"""Folders whose files share what is started once."""
_LONG = ("tests/unit/dev/demo/", "tests/unit/examples/", "tests/unit/simulator/train/")
"""Folders with tests of some minutes: begun last, they would keep one process busy and leave the others idle."""
_YIELDS = 3
"""Of `nice`: half of what others get where all want to run."""
_LONGEST_S = 600
"""For a test beside others. Nothing is asserted of it: it ends what hangs."""


def of_stacks(test: str) -> bool:
    """Whether a test, by its id, is of those that start real parts."""
    file = test.partition("::")[0]
    return file.startswith(_OF_STACKS) or file.rpartition("/")[2].startswith(_FILES_OF_STACKS)


class _InTurn(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Gives tests of stacks away by file, to all processes but one while there are any, and the others one by one."""

    def _split_scope(self, nodeid: str) -> str:
        if not of_stacks(nodeid):
            return nodeid
        return next((folder for folder in _TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        computes = len(self.nodes) > 1 and node is self.nodes[-1]
        scopes = (scope for scope in self.workqueue if of_stacks(scope) is not computes)
        if (scope := next(scopes, None)) is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        # A process runs a test once it knows the next one.
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Its tests go to others, but for the one that it crashed in, which is returned: it would crash them too."""
        work = self.assigned_work[node]
        left = [(tests, test) for tests in work.values() for test, ended in tests.items() if not ended]
        for tests, crashed in left[:1]:
            tests[crashed] = True
        self.assigned_work[node] = {name: tests for name, tests in work.items() if not all(tests.values())}
        super().remove_node(node)
        return left[0][1] if left else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _InTurn | None:
    """For `--dist load`, which is that of `-n`."""
    return _InTurn(config, log) if config.getoption("dist") == "load" else None


def pytest_configure(config: pytest.Config) -> None:
    """Keep this process out of the others' way."""
    given = getattr(config, "workerinput", None)
    if given is None:
        # One for all: ids of tests may be made of sets, and have to be the same everywhere.
        os.environ.setdefault("PYTHONHASHSEED", str(random.SystemRandom().randrange(2**32)))
        return
    # The name of one that takes a crashed one's place counts on.
    number, count = int(given["workerid"].removeprefix("gw")), given["workercount"]
    first, last = process.allowed()
    each = (last + 1 - first) // count
    first += number % count * each
    os.environ[process.ALLOWED] = f"{first}-{first + each - 1}"
    # An example may take as long as the machine is busy.
    settings.register_profile("beside others", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("beside others")
    IndexDataCacheFile.save = _one_by_one(IndexDataCacheFile.save)


def pytest_report_header(config: pytest.Config) -> str:
    """What a failure may hang on."""
    return f"PYTHONHASHSEED: {os.environ.get('PYTHONHASHSEED', '')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each the time that it may need on a busy machine, and begin with those that take long."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONGEST_S))


def _one_by_one(save: Any) -> Any:
    """numba names a file by what its index has, and writes both: of two that do so at once, one gets the other's."""

    @wraps(save)
    def saved(cache: IndexDataCacheFile, key: Any, data: Any) -> None:
        with Path(cache._cache_path, "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            save(cache, key, data)

    return saved


class _Yields:
    """Decided by the first test: which process is given the stacks is not known before."""

    decided = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Yield to the stacks, unless this is the process that has them."""
    if _Yields.decided or not hasattr(item.config, "workerinput"):
        return
    _Yields.decided = True
    if not of_stacks(item.nodeid):
        os.nice(_YIELDS)
