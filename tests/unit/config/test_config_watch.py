"""The config file is followed through every way that files are replaced."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from balancer.config import config
from balancer.config.config import Config, ConfigError
from balancer.config.watch import ConfigState, watch
from balancer.files import watch as watched_files


@dataclass
class Seen:
    """What a watch reported, in order; `next` waits for the one after those taken so far."""

    queue: asyncio.Queue[Config | ConfigError] = field(default_factory=asyncio.Queue)

    async def next(self) -> Config | ConfigError:
        return await asyncio.wait_for(self.queue.get(), 30)

    async def policy(self) -> str:
        """The policy of the next good config, passing over bad ones."""
        while isinstance(seen := await self.next(), ConfigError):
            pass
        return seen.policy.name

    async def error(self) -> str:
        seen = await self.next()
        assert isinstance(seen, ConfigError), seen
        return str(seen)


Watching = Callable[..., AbstractAsyncContextManager[Seen]]


@pytest.fixture
def watching() -> Watching:
    @asynccontextmanager
    async def start(path: Path, running: Config | None = None) -> AsyncIterator[Seen]:
        seen, stop = Seen(), asyncio.Event()
        put = seen.queue.put_nowait
        task = asyncio.create_task(watch(path, put, put, stop, running=running))
        try:
            yield seen
        finally:
            stop.set()
            await task

    return start


def text(policy: str) -> str:
    return f"policy:\n  name: {policy}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "balancer.yaml"
    path.write_text(text("random"))
    return path


async def test_first_content_is_reported_unless_it_is_what_runs(file: Path, watching: Watching) -> None:
    async with watching(file) as seen:
        assert await seen.policy() == "random"
    async with watching(file, running=config.load(file)) as seen:
        file.write_text(text("prequal"))
        assert await seen.policy() == "prequal"


async def test_written_between_load_and_watch_is_not_lost(file: Path, watching: Watching) -> None:
    running = config.load(file)
    file.write_text(text("prequal"))
    async with watching(file, running=running) as seen:
        assert await seen.policy() == "prequal"


async def test_renamed_over_as_editors_do(file: Path, watching: Watching) -> None:
    async with watching(file) as seen:
        assert await seen.policy() == "random"
        for name in ("prequal", "wlpr", "round_robin"):
            new = file.with_suffix(".new")
            new.write_text(text(name))
            new.replace(file)
            assert await seen.policy() == name


async def test_truncated_and_written_in_place(file: Path, watching: Watching) -> None:
    async with watching(file) as seen:
        assert await seen.policy() == "random"
        for name in ("prequal", "wlpr"):
            file.write_text(text(name))
            assert await seen.policy() == name


async def test_a_file_left_empty_is_refused_not_taken_for_defaults(file: Path, watching: Watching) -> None:
    async with watching(file) as seen:
        assert await seen.policy() == "random"
        with file.open("w") as half_written:
            assert "the file is empty" in await seen.error()
            half_written.write(text("wlpr"))
        assert await seen.policy() == "wlpr"


def mount(folder: Path, version: str, content: str) -> None:
    """What the kubelet does to a ConfigMap volume: a new folder, then `..data` swapped to it by one rename."""
    (folder / version).mkdir()
    (folder / version / "balancer.yaml").write_text(content)
    swap = folder / "..data_tmp"
    swap.symlink_to(version)
    old = os.readlink(folder / "..data") if (folder / "..data").is_symlink() else None
    swap.replace(folder / "..data")
    if old is not None:
        (folder / old / "balancer.yaml").unlink()
        (folder / old).rmdir()


async def test_configmap_symlink_swap(tmp_path: Path, watching: Watching) -> None:
    mount(tmp_path, "..2025_01_01", text("random"))
    path = tmp_path / "balancer.yaml"
    path.symlink_to("..data/balancer.yaml")
    async with watching(path) as seen:
        assert await seen.policy() == "random"
        mount(tmp_path, "..2025_01_02", text("prequal"))
        assert await seen.policy() == "prequal"
        mount(tmp_path, "..2025_01_03", "polcy: {}\n")
        assert 'did you mean "policy"?' in await seen.error()
        mount(tmp_path, "..2025_01_04", text("wlpr"))
        assert await seen.policy() == "wlpr"


async def test_removed_and_back(file: Path, watching: Watching) -> None:
    async with watching(file) as seen:
        assert await seen.policy() == "random"
        file.unlink()
        assert "cannot be read: No such file or directory" in await seen.error()
        file.write_text(text("random"))
        assert await seen.policy() == "random"


async def test_bad_files_between_good_ones(file: Path, watching: Watching) -> None:
    async with watching(file) as seen:
        assert await seen.policy() == "random"
        for bad in ("policy: {name: nope}\n", "- 1\n", "policy: [\n", "\x00", "limits: {shed_late: 3}\n"):
            new = file.with_suffix(".new")
            new.write_text(bad)
            new.replace(file)
            assert str(file) in await seen.error()
        file.write_text(text("prequal"))
        assert await seen.policy() == "prequal"


async def test_changes_are_seen_where_the_system_does_not_notify(
    file: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_instances(*_: object, **__: object) -> None:
        raise OSError(24, "inotify instances exhausted")

    monkeypatch.setattr(watched_files, "_inotify", out_of_instances)
    monkeypatch.setattr(watched_files, "_POLL_S", 0.02)
    async with watching(file) as seen:
        assert await seen.policy() == "random"
        file.write_text(text("prequal"))
        assert await seen.policy() == "prequal"


async def test_cancelling_a_watch_stops_nothing_else(file: Path) -> None:
    stop, first = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(watch(file, lambda _: first.set(), lambda _: None, stop))
    await asyncio.wait_for(first.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not stop.is_set()


class TestState:
    def test_accept_refuse_and_recover(self) -> None:
        state = ConfigState(config.Config(), "balancer.yaml", loaded_at_s=1.0)
        with pytest.raises(ConfigError) as caught:
            config.parse("", "balancer.yaml")
        state.refuse(caught.value, now_s=2.0)
        shown = state.as_json()
        assert shown["hash"] == config.Config().hash
        assert shown["newest_file_in_force"] is False
        assert shown["last_error"]["at_s"] == 2.0
        assert shown["last_error"]["problems"][0].startswith("balancer.yaml: the file is empty")

        assert state.accept(config.parse(text("random"), "balancer.yaml"), now_s=3.0)
        assert (state.applied, state.refused, state.loaded_at_s, state.last_error) == (1, 1, 3.0, None)

    def test_an_equal_config_clears_the_error_and_changes_nothing_else(self) -> None:
        state = ConfigState(config.Config(), "balancer.yaml", loaded_at_s=1.0)
        state.refuse(ConfigError([]), now_s=2.0)
        assert not state.accept(config.parse("{}", "balancer.yaml"), now_s=3.0)
        assert (state.applied, state.loaded_at_s, state.last_error) == (0, 1.0, None)

    def test_restart_fields_are_compared_with_the_start(self) -> None:
        state = ConfigState(config.Config(), "balancer.yaml", loaded_at_s=1.0)
        state.accept(config.parse("processes: 2", "f"), now_s=2.0)
        state.accept(config.parse("{processes: 2, seed: 1}", "f"), now_s=3.0)
        assert state.waiting_for_restart == ["processes"]
        state.accept(config.parse("{}", "f"), now_s=4.0)
        assert state.waiting_for_restart == []
