from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from balancer.fleet_api import control
from balancer.fleet_api.control import Memory, MemoryChange, TooMuchError


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
