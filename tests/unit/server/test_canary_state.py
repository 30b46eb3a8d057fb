"""What was decided before a balancer ended: kept for the next one, for exactly what it was decided about."""

from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from balancer.config.config import Config, from_mapping
from balancer.scheduler.canary.guard import Guard
from balancer.scheduler.canary.rollout import Rollout
from balancer.scheduler.canary.split import Split
from balancer.scheduler.canary.switchback import Finding
from balancer.server.app import App
from balancer.server.canary_state import state_file

WORSE = Finding("tail", "p99 900 ms, of the old policy's 90 ms")
CONFIG: dict[str, Any] = {
    "policy": {"name": "wlpr"},
    "guard": {"enabled": True},
    "rollout": {"name": "peak_ewma"},
    "models": {"m": {"split": {"old": 1, "new": 2, "share": 0.1}}},
    "state_file": "state/decided.json",
}


class Process:
    """A balancer, from the start on."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.app = App(from_mapping(config), folder / "balancer.yaml")

    @property
    def rollout(self) -> Rollout:
        assert self.app.router.selector is not None
        assert self.app.router.selector.rollout is not None
        return self.app.router.selector.rollout

    @property
    def guard(self) -> Guard:
        assert self.app.router.selector is not None
        assert self.app.router.selector.guard is not None
        return self.app.router.selector.guard

    @property
    def split(self) -> Split:
        return self.app._picker.splits.of["m"]

    async def written(self, path: Path, *words: str) -> None:
        async def there() -> bool:
            app = self.app
            app._decided.tick(app.router.selector, app._picker.splits, app._clock())
            return path.exists() and all(word in path.read_text() for word in words)

        await eventually(there, "what was decided is written")


def file_of(folder: Path) -> Path:
    return folder / "state" / "decided.json.0"


async def test_what_was_decided_is_not_decided_again(tmp_path: Path) -> None:
    one = Process(tmp_path, CONFIG)
    one.rollout.give_up(WORSE, 1.0)
    one.guard.failed("ValueError: no", 1.0)
    one.split.returned = "9% of version 2 failed"
    await one.written(file_of(tmp_path), "rollout", "guard", "split m")
    two = Process(tmp_path, CONFIG)
    assert (two.rollout.state, two.rollout.finding, two.rollout.standing[0]) == ("returned", WORSE, 0.0)
    assert two.guard.breach is not None
    assert two.guard.breach.finding == Finding("invalid", "ValueError: no")
    assert (two.split.returned, two.split.share) == ("9% of version 2 failed", 0.0)


async def test_a_rollout_that_finished_stays_so_until_the_section_goes(tmp_path: Path) -> None:
    one = Process(tmp_path, CONFIG)
    one.rollout.resume_finished()
    await one.written(file_of(tmp_path), "finished")
    two = Process(tmp_path, CONFIG)
    assert (two.rollout.state, two.rollout.takes(1, 0.0), two.rollout.share) == ("finished", True, 1.0)
    assert two.app.router.selector is not None
    assert two.app.router.selector.main()[0].name == "peak_ewma"
    # Taken out and put back, it begins again; as well where that happens while there is no balancer.
    without = {name: value for name, value in CONFIG.items() if name != "rollout"}
    two.app._accept(from_mapping(without))
    two.app._accept(from_mapping(CONFIG))
    assert two.rollout.state == "running"
    three = Process(tmp_path, without)
    await eventually(
        lambda: (
            "finished" not in file_of(tmp_path).read_text()
            or three.app._decided.tick(three.app.router.selector, three.app._picker.splits, three.app._clock())
        ),
        "it is forgotten",
    )
    assert Process(tmp_path, CONFIG).rollout.state == "running"


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": {"name": "prequal"}},
        {"rollout": {"name": "peak_ewma", "step_s": 7}},
        {"rollout": {"name": "power_of_two"}},
        {"guard": {"enabled": True, "quiet_s": 7}},
    ],
    ids=str,
)
async def test_of_another_config_it_says_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    one = Process(tmp_path, CONFIG)
    one.rollout.give_up(WORSE, 1.0)
    await one.written(file_of(tmp_path), "rollout")
    assert Process(tmp_path, CONFIG | changed).rollout.state == "running"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"decided": []}',
        b'{"decided": {"rollout": {"about": 1}}}',
        b'{"decided": {"rollout": {"about": "", "state": "won", "reason": "", "words": "", "quiet_s": 0}}}',
        b'{"decided": {"guard": {"about": "", "state": "fallen", "reason": "", "words": "", "quiet_s": NaN}}}',
        b"[" * 100_000,
        b" " * 2**21,
    ],
)
def test_a_file_that_says_something_else_counts_as_none(tmp_path: Path, content: bytes) -> None:
    file_of(tmp_path).parent.mkdir()
    file_of(tmp_path).write_bytes(content)
    assert Process(tmp_path, CONFIG).rollout.state == "running"


async def test_where_it_cannot_be_written_the_balancer_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("no folder")
    one = Process(tmp_path, CONFIG)
    one.rollout.give_up(WORSE, 1.0)

    async def logged() -> bool:
        one.app._decided.tick(one.app.router.selector, one.app._picker.splits, one.app._clock())
        return "name a file that the balancer may write to in state_file, or null" in caplog.text

    await eventually(logged, "it is told")


def test_each_process_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, named = tmp_path / "balancer.yaml", from_mapping({"state_file": "a.json"})
    assert state_file(named, source, 1) == tmp_path / "a.json.1"
    assert state_file(from_mapping({"state_file": None}), source, 0) is None
    assert state_file(Config(), None, 0) is None
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    one, other = (state_file(Config(), tmp_path / name, 0) for name in ("a.yaml", "b.yaml"))
    assert one is not None
    assert one.parent == Path("/state/balancer")
    assert one != other
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/balancer")
    found = state_file(Config(), source, 0)
    assert found is not None
    assert found.parent == Path("/var/lib/balancer")
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert state_file(Config(), source, 0) is None
