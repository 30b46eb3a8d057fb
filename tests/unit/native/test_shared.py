"""The shared folder and state, by themselves: who may have them, and what is told when there is no room."""

import errno
import time
from pathlib import Path
from typing import Any

import pytest
from support.settling import SEED

from balancer.kernel.compiled.library import Library
from balancer.kernel.settings import Settings
from balancer.native.envoy_module import Module, ModuleError
from balancer.native.router import SharedRouter
from balancer.native.state import Folder, FolderError, default_folder
from balancer.scheduler.errors import NoEligibleWorker
from balancer.scheduler.events import WorkerAdded, WorkerRemoved
from policies import BUILTIN
from policies.base import Policy, Request
from policies.round_robin import RoundRobin


def a_router(folder: Folder, policy: Policy | None = None) -> SharedRouter:
    library = Library()
    settings = Settings(reports_required=False)
    return SharedRouter(policy or BUILTIN["wlpr"](), settings, SEED, library, Module(library), folder)


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    first = Folder(tmp_path / "shared")
    with pytest.raises(FolderError, match="in use by another balancer"):
        Folder(tmp_path / "shared")
    first.close()
    Folder(tmp_path / "shared").close()


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o755)
    with pytest.raises(FolderError, match="not a folder of this user alone"):
        Folder(path)
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(FolderError):
        Folder(path)


def test_the_default_folder_follows_from_the_config() -> None:
    assert default_folder("127.0.0.1:1") == default_folder("127.0.0.1:1")
    assert default_folder("127.0.0.1:1") != default_folder("127.0.0.1:2")


def test_a_module_that_is_missing_or_foreign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModuleError, match=r"there is no module\.so; build it"):
        Module(Library(), tmp_path / "module.so")
    (tmp_path / "module.so").write_bytes(b"none")
    with pytest.raises(ModuleError, match="cannot be loaded"):
        Module(Library(), tmp_path / "module.so")


def test_what_is_written_is_for_this_user_alone_and_only_the_last_is_kept(tmp_path: Path) -> None:
    router = a_router(Folder(tmp_path / "shared"))
    for number in range(40):
        router.observe(WorkerAdded(f"w{number}"), time.monotonic())
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "shared").iterdir())
    assert names == ["control", "directory", "fleet_state", "options", "options", "options", "owner"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "shared").iterdir())


def test_a_refusal_has_a_number_that_no_decision_gets(tmp_path: Path) -> None:
    router = a_router(Folder(tmp_path / "shared"))
    router.observe(WorkerAdded("w"), 0.0)
    router.refuse(Request("m"), NoEligibleWorker("nobody"), 0.0)
    assert router.route(Request("m"), 0.0).number == 1


def test_without_room_for_a_directory_envoys_ask_until_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder(tmp_path / "shared")
    router = a_router(folder)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder, "write", full)
        for number in range(3):
            router.observe(WorkerAdded(f"w{number}"), time.monotonic())
    assert [record.message for record in caplog.records if "cannot be written" in record.message][1:] == []
    assert len(router.fleet.workers) == 3
    serial = max(int(path.name.partition("-")[2]) for path in (tmp_path / "shared").glob("directory-*"))
    router.observe(WorkerAdded("w3"), time.monotonic())
    assert (tmp_path / "shared" / f"directory-{serial + 1}").exists()


def test_envoys_decide_by_policies_that_are_compiled(tmp_path: Path) -> None:
    class Own(RoundRobin):
        """A third party's."""

        name = "own"

        def probabilities(self, request: Any, fleet: Any) -> Any:
            return super().probabilities(request, fleet)

    router = a_router(Folder(tmp_path / "shared"))
    assert router.not_deciding_because == ""
    router.configure(Own(), router.settings)
    assert router.not_deciding_because == "policy own is not compiled"
    router.configure(BUILTIN["learned"](), router.settings)
    assert router.not_deciding_because == ""


def test_a_lock_that_is_kept_costs_the_state_and_not_the_balancer(tmp_path: Path) -> None:
    router = a_router(Folder(tmp_path / "shared"))
    for number in range(3):
        router.observe(WorkerAdded(f"w{number}"), time.monotonic())
    router.route(Request("m"), time.monotonic())
    before = router.fleet.block
    assert router.state.lock()
    router.observe(WorkerRemoved("w0"), time.monotonic())
    assert router.replaced == 1
    assert router.fleet.block is not before
    assert not before.header["in_force"]
    assert len(router.fleet.workers) == 2
    assert router.fleet.queue.in_flight.sum() <= 1
