"""A neighbour who can put files where the balancer reads: no file holds it up, and each is refused in words."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.waiting import eventually

from balancer.bounds import MAX_FILE_BYTES
from balancer.config import config
from balancer.config.config import Config, ConfigError
from balancer.config.watch import watch
from balancer.files import regular
from balancer.files.watch import versions

_PATIENCE_S = 60


def balancer(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`balancer ARGUMENTS`, to its end."""
    command = [sys.executable, "-m", "balancer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)


def fifo(path: Path) -> str:
    os.mkfifo(path)
    return "is a FIFO; name a regular file"


def directory(path: Path) -> str:
    path.mkdir()
    return "is a directory; name a regular file"


def device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "is a device; name a regular file"


def unix_socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return "is a socket; name a regular file"


def without_end(path: Path) -> str:
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return f"is {1 << 40} bytes long, and at most {MAX_FILE_BYTES} are read"


KINDS = (fifo, directory, device, unix_socket, without_end)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_neighbour_cannot_hold_up_a_running_balancer(tmp_path: Path, kind: object) -> None:
    path = tmp_path / "balancer.yaml"
    path.write_text("seed: 1\n")
    seen: asyncio.Queue[Config | ConfigError] = asyncio.Queue()
    stop = asyncio.Event()
    watching = asyncio.create_task(watch(path, seen.put_nowait, seen.put_nowait, stop))
    assert (await asyncio.wait_for(seen.get(), _PATIENCE_S)) == Config(seed=1)
    path.unlink()
    assert callable(kind)
    message = kind(path)
    while message not in str(refused := await asyncio.wait_for(seen.get(), _PATIENCE_S)):
        assert "No such file" in str(refused)
    if path.is_dir():
        path.rmdir()
    good = tmp_path / "good"
    good.write_text("seed: 2\n")
    good.replace(path)
    assert (await asyncio.wait_for(seen.get(), _PATIENCE_S)) == Config(seed=2)
    stop.set()
    await watching


@pytest.mark.integration
@pytest.mark.parametrize("command", [("check",), ("serve", "--config"), ("up", "--run-dir", "{}", "--config")])
def test_a_neighbour_cannot_hold_up_a_command(tmp_path: Path, command: tuple[str, ...]) -> None:
    message = fifo(tmp_path / "balancer.yaml")
    ended = balancer(*(part.format(tmp_path / "run") for part in command), str(tmp_path / "balancer.yaml"))
    assert ended.returncode == 1
    assert ended.stderr.strip() == f"Error: {tmp_path / 'balancer.yaml'}: {message}"


async def test_a_file_system_that_hangs_is_logged_once_and_takes_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text("workers: []\n")
    let_go, reads = threading.Event(), 0

    def hanging_fake(_: Path) -> bytes:
        nonlocal reads
        reads += 1
        let_go.wait()
        return b"workers: []\n"

    monkeypatch.setattr("balancer.files.watch.read_file", hanging_fake)
    monkeypatch.setattr("balancer.files.watch.READ_LIMIT_S", 0.05)
    stop = asyncio.Event()
    seen: list[bytes | ConfigError] = []

    async def follow() -> None:
        async for content in versions(path, stop):
            seen.append(content)  # noqa: PERF401 - looked at while it grows

    following = asyncio.create_task(follow())
    await eventually(lambda: seen, "it is told")
    # By then it was looked at twice: one thread waits, and no other was started.
    assert reads == 1
    assert "was not read within 0.05 s; is the file system that it is on still there?" in str(seen[0])
    let_go.set()
    await eventually(lambda: seen[-1] == b"workers: []\n", "the file is read once it can be")
    assert len(seen) == 2
    stop.set()
    await following


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 1_000_000, "nested too deeply, in more than 100 lists and mappings"),
        ("{a: " * 1_000_000, "nested too deeply"),
        ("x: [" + "a," * 4_000_000 + "]", "more than 200000 values"),
        ("models:\n" + "".join(f"  m{i}: {{memory_bytes: 1}}\n" for i in range(300_000)), "more than 200000 values"),
    ],
    ids=["deep lists", "deep mappings", "long list", "many models"],
)
def test_a_neighbour_cannot_crash_or_occupy_the_reader(content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.parse(content, "balancer.yaml")


def test_a_file_that_grows_while_it_is_read_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 101)
    with pytest.raises(regular.UnreadableError, match="is 101 bytes long, and at most 100 are read"):
        regular.read_regular(path, 100)
    assert regular.read_regular(path, 101) == b"x" * 101
