"""What an Envoy's threads and the balancer do at once, under the thread sanitizer, which ends at the first race."""

import dataclasses
import os
import platform
import subprocess
from pathlib import Path

import pytest
from support.c_programs import compiled
from support.settling import SETTINGS, leave

from balancer.kernel.compiled.library import PATH
from balancer.kernel.settings import RolloutSettings
from balancer.native.build import WITHOUT_HOOKS

THREADS, ROUNDS = 4, 200
_THREADS_CHECKED = ("-O1", "-g", "-fsanitize=thread")
SERIAL_AT = 40
"""Of `struct directory_head`, bytes."""


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(
        tmp_path_factory.mktemp("c") / "race", *_THREADS_CHECKED, Path(__file__).with_name("race.c"), *WITHOUT_HOOKS
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a balancer leaves it, with two directories that differ in their number alone."""
    path = tmp_path / "shared"
    leave(path, dataclasses.replace(SETTINGS["limits"], stale_after_s=1e6), RolloutSettings((0.5, 1.0)))
    (directory,) = path.glob("directory-*")
    for serial in (1, 2):
        content = bytearray(directory.read_bytes())
        content[SERIAL_AT : SERIAL_AT + 8] = serial.to_bytes(8, "little")
        (path / f"directory-{serial}").write_bytes(content)
    return path


def test_threads_and_balancer_do_not_race(race: Path, folder: Path) -> None:
    # The sanitizer wants its own addresses.
    fixed = ["setarch", platform.machine(), "-R"]
    done = subprocess.run(
        [*fixed, race, PATH, folder, str(THREADS), str(ROUNDS)],
        capture_output=True,
        text=True,
        env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken, turned_away, reported, in_flight = map(int, done.stdout.split())
    assert taken
    assert turned_away
    assert reported
    assert in_flight == 0
