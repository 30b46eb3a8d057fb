"""When a change of workers is answered; the workers are a function here."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from support.fleets import make_router, model, report
from tritonclient.grpc import service_pb2

from balancer.config.config import from_mapping
from balancer.discovery.workers import WorkerSpec
from balancer.fleet_api import control
from balancer.fleet_api.control import Control, Memory, MemoryChange, TooMuchError
from balancer.fleet_api.fan_out import FanOut, FleetCallCounts
from balancer.fleet_api.questions import Members
from balancer.scheduler.router import Router
from policies.round_robin import RoundRobin

LOAD = service_pb2.RepositoryModelLoadRequest(model_name="new")
DONE = service_pb2.RepositoryModelLoadResponse()


def controlled(router: Router, monkeypatch: pytest.MonkeyPatch) -> Control:
    async def ask(*_: Any) -> Any:
        return DONE

    monkeypatch.setattr(control, "ask", ask)
    members = Members(router)
    members.listed = tuple(
        WorkerSpec(name=f"w{row}", address="127.0.0.1", grpc_port=row + 1, http_port=row + 11) for row in range(2)
    )
    config = from_mapping({"envoy": {"listen": "127.0.0.1:8080"}, "fleet": {"control": {"callers": ["*"]}}})
    channels = cast(Any, None)  # nobody is asked but the function above
    return Control(members, FanOut(), channels, lambda: config, FleetCallCounts(CollectorRegistry()), replays=False)


async def test_a_load_is_answered_once_requests_for_the_model_find_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    router = make_router(2, RoundRobin())
    loading = asyncio.create_task(controlled(router, monkeypatch).change("RepositoryModelLoad", LOAD, "anybody"))
    for row in range(2):
        done, _ = await asyncio.wait([loading], timeout=0.1)
        assert not done
        router.observe(report(f"w{row}", 2, [model(), model("new")]), 0.1)
    assert await loading == DONE


async def test_agents_that_never_report_it_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_SEEN_S", 0.1)
    router = make_router(2, RoundRobin())
    assert await controlled(router, monkeypatch).change("RepositoryModelLoad", LOAD, "anybody") == DONE


def load(model: str, config: str = "") -> MemoryChange:
    request = service_pb2.RepositoryModelLoadRequest(model_name=model)
    if config:
        request.parameters["config"].string_param = config
    return MemoryChange("RepositoryModelLoad", request)


def unload(model: str) -> MemoryChange:
    return MemoryChange("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=model))


def region(name: str, kind: str = "Register") -> MemoryChange:
    of: Any = getattr(service_pb2, f"SystemSharedMemory{kind}Request")
    return MemoryChange(f"SystemSharedMemory{kind}", of(name=name))


def log(**settings: bool) -> MemoryChange:
    request = service_pb2.LogSettingsRequest()
    for key, value in settings.items():
        request.settings[key].bool_param = value
    return MemoryChange("LogSettings", request)


@pytest.fixture(params=[False, True], ids=["in_memory", "file"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Memory:
    return Memory(lambda: tmp_path / "changes.json" if request.param else None)


def test_of_changes_of_one_thing_the_last_counts_in_its_order(kept: Memory) -> None:
    for change in (load("a"), load("b"), unload("a"), load("b", "{}")):
        kept.keep(change)
    assert [(change.method, change.model) for change in kept.changes()] == [
        ("RepositoryModelUnload", "a"),
        ("RepositoryModelLoad", "b"),
    ]
    assert kept.changes()[1].request.parameters["config"].string_param == "{}"


def test_regions_are_kept_until_they_are_let_go_one_or_all(kept: Memory) -> None:
    for name in ("r", "s", "t"):
        kept.keep(region(name))
    kept.keep(load("a"))
    kept.keep(region("s", "Unregister"))
    assert [change.about for change in kept.changes()] == ["System region r", "System region t", "model a"]
    kept.keep(region("", "Unregister"))
    assert [change.about for change in kept.changes()] == ["model a"]


def test_settings_that_a_later_change_does_not_name_stay(kept: Memory) -> None:
    kept.keep(log(log_info=False, log_warning=True))
    kept.keep(log(log_warning=False))
    (change,) = kept.changes()
    assert {key: value.bool_param for key, value in change.request.settings.items()} == {
        "log_info": False,
        "log_warning": False,
    }


def test_processes_of_a_machine_know_of_each_others_changes(tmp_path: Path) -> None:
    file = tmp_path / "changes.json"
    one, other = Memory(lambda: file), Memory(lambda: file)
    one.keep(MemoryChange("RepositoryModelLoad", load("a").request, (("triton-grpc-protocol-key", "secret"),)))
    other.keep(load("b"))
    assert [change.model for change in one.changes()] == ["a", "b"]
    assert one.changes()[0].headers == (("triton-grpc-protocol-key", "secret"),)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        "{}x",
        '[{"method": "Nothing", "request": "", "headers": []}]',
        '[{"method": "LogSettings"}]',
        '"text"',
    ],
)
def test_a_file_that_is_none_changes_nothing_and_is_logged(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "changes.json"
    kept = Memory(lambda: file)
    kept.keep(load("a"))
    file.write_text(content)
    assert [change.model for change in kept.changes()] == ["a"]
    assert "fleet.control.file" in caplog.text
    assert "remove it" in caplog.text
    kept.keep(load("b"))
    assert len(json.loads(file.read_text())) == 2


def test_a_folder_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Memory(lambda: tmp_path / "nothing" / "changes.json").keep(load("a"))
    assert "cannot be written" in caplog.text


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MOST_CHANGES", 2)
    kept = Memory(lambda: None)
    for name in ("a", "b"):
        kept.make_room(load(name))
        kept.keep(load(name))
    kept.make_room(load("a"))
    with pytest.raises(TooMuchError, match="more than 2 changes"):
        kept.make_room(load("c"))
    monkeypatch.setattr(control, "MOST_BYTES", 100)
    with pytest.raises(TooMuchError, match="100 bytes"):
        kept.make_room(load("a", "x" * 200))
