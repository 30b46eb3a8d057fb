"""Whatever stands in the shared files, the module reads and writes nothing beyond them, and ends no process."""

import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.state import POLICIES, fuzzed
from support.settling import SEED, SETTINGS, TAKEN, begin, leave, printed_by, script

from balancer.kernel.block import ENTRY, HEADER
from balancer.kernel.compiled.library import PATH, Compiled, Library
from balancer.kernel.fleet_state import FIELDS
from balancer.kernel.settings import RolloutSettings
from balancer.scheduler.router import Router
from policies import BUILTIN

BALANCER_DECIDES = 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torn") / "shared"
    leave(path, SETTINGS["limits"], RolloutSettings())
    return path


@pytest.fixture(scope="module")
def requests() -> str:
    own = Router(BUILTIN["wlpr"](), SETTINGS["limits"], SEED, Compiled(Library()))
    began_ns = time.monotonic_ns()
    begin(own, began_ns * 1e-9)
    return "\n".join([line for line, _ in script(own, began_ns + 60_000_000)][:60])


def answers(settle: Path, folder: Path, requests: str) -> set[str]:
    lines = [line for line in requests.splitlines() if line.startswith("ask")]
    return {line.split()[0] for line in printed_by((settle, PATH, folder), lines)}


@pytest.mark.parametrize(
    ("dtype", "fields"),
    [
        (HEADER, {"magic": 1}),
        (HEADER, {"abi": 2}),
        (HEADER, {"stamp": b"0123456789abcdef"}),
        (HEADER, {"kind": 2}),
        (HEADER, {"bytes": 1 << 62}),
        (HEADER, {"workers": 1 << 10}),
        (HEADER, {"models": 1 << 31}),
        (ENTRY, {"offset": 1 << 62}),
        (ENTRY, {"offset": 2**64 - 8}),
        (ENTRY, {"offset": 12}),
        (ENTRY, {"shape": (-1, 0, 0)}),
        (ENTRY, {"shape": (1 << 60, 1 << 60, 0)}),
        (ENTRY, {"strides": (8, 8, 8)}),
        (ENTRY, {"axes": 3}),
        (ENTRY, {"type": ord("b")}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_state_that_does_not_fit_is_left_to_the_balancer(
    settle: Path, shared: Path, requests: str, tmp_path: Path, dtype: np.dtype[Any], fields: dict[str, Any]
) -> None:
    folder = tmp_path / "shared"
    shutil.copytree(shared, folder)
    assert str(TAKEN) in answers(settle, folder, requests)
    content = bytearray((folder / "fleet_state").read_bytes())
    # An array of two axes.
    start = 0 if dtype is HEADER else HEADER.itemsize + list(FIELDS).index("queue.known_rows") * ENTRY.itemsize
    for name, value in fields.items():
        np.frombuffer(content, dtype, 1, start)[name] = value
    (folder / "fleet_state").write_bytes(content)
    assert answers(settle, folder, requests) == {str(BALANCER_DECIDES)}


@pytest.mark.parametrize("at", [-1, 400])
def test_options_are_what_the_balancer_wrote_in_every_bit(
    settle: Path, shared: Path, requests: str, tmp_path: Path, at: int
) -> None:
    """The kernel follows them unchecked; nobody would see another quantile."""
    folder = tmp_path / "shared"
    shutil.copytree(shared, folder)
    (path,) = folder.glob("options-*-policy-*")
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert answers(settle, folder, requests) == {str(BALANCER_DECIDES)}


def test_spoiled_state_ends_nobody(tmp_path: Path) -> None:
    """A little of what `make fuzz` tries."""
    for says in fuzzed(tmp_path, 80 * len(POLICIES), 3):
        inputs, _, decided = (int(number) for number in re.findall(r"(\d+) ", says))
        assert inputs == 80
        assert decided > 100, "it is the files that are tried, and not the way to them"
