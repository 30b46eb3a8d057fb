"""Whatever stands in the shared files, the module reads and writes nothing beyond them, and ends no process."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fuzz.state import POLICIES, fuzzed
from support.settling import SEED, SETTINGS, begin, endpoint, script

from balancer.kernel.compiled.library import PATH, Compiled, Library
from balancer.kernel.settings import GuardSettings, RolloutSettings
from balancer.native.envoy_module import Module
from balancer.native.folder import Folder
from balancer.native.router import SharedRouter
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.router import Router
from policies import BUILTIN

BALANCER_DECIDES = 0
HEAD_BYTES = 8192
"""Where headers and tables lie; what follows are numbers."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a balancer leaves it that has a guard and a rollout."""
    path = tmp_path_factory.mktemp("torn") / "shared"
    library = Library()
    router = SharedRouter(BUILTIN["wlpr"](), SETTINGS["limits"], SEED, library, Module(library), Folder(path))
    begin(router, time.monotonic())
    names = router.fleet.names
    router.tell({n: endpoint(n, True) for n in names}, {n: endpoint(n, False) for n in names})
    plan = CanaryPlan(GuardSettings(), BUILTIN["least_requests"](), None, 0.0, RolloutSettings(), BUILTIN["random"]())
    selector = PolicySelector(router.policy, plan)
    selector.choose(0, time.monotonic())
    router.configure(router.policy, router.settings, selector)
    router.tell_decisions(1.0)
    router.serve(True)
    return path


@pytest.fixture(scope="module")
def asked() -> str:
    own = Router(BUILTIN["wlpr"](), SETTINGS["limits"], SEED, Compiled(Library()))
    began_ns = time.monotonic_ns()
    begin(own, began_ns * 1e-9)
    return "\n".join([line for line, _ in script(own, began_ns + 60_000_000)][:60])


def spoil(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 4, 32))):
        at = dice.randrange(min(len(content), dice.choice((64, 512, HEAD_BYTES, len(content)))))
        at -= at % 8
        content[at : at + 8] = dice.choice(
            (dice.randbytes(8), bytes(8), b"\xff" * 8, (1 << dice.randrange(63)).to_bytes(8, "little"))
        )[: len(content) - at]
    if dice.random() < 0.2:
        content = content[: dice.randrange(len(content))]
    path.write_bytes(content)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
@pytest.mark.parametrize("name", ["control", "fleet_state", "directory-*", "options-*", "journal"])
def test_it_survives(settle: Path, shared: Path, asked: str, tmp_path: Path, name: str, seed: int) -> None:
    dice = random.Random(f"{name} {seed}")
    for number in range(5):
        folder = tmp_path / str(number)
        shutil.copytree(shared, folder)
        for path in folder.glob(name):
            spoil(path, dice)
        done = subprocess.run(
            [settle, PATH, folder], input=asked, capture_output=True, text=True, errors="replace", check=False
        )
        # `settle` ends with 2 where a request to be ended was never decided, with 4 where it does not get the lock.
        assert done.returncode in {0, 2, 4}, done.stderr
        shutil.rmtree(folder)


@pytest.mark.parametrize("at", [-1, 400])
def test_options_are_what_the_balancer_wrote_in_every_bit(
    settle: Path, shared: Path, asked: str, tmp_path: Path, at: int
) -> None:
    """The kernel follows them unchecked; nobody would see another quantile."""
    folder = tmp_path / "shared"
    shutil.copytree(shared, folder)
    (path,) = folder.glob("options-*-policy-*")
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    lines = "\n".join(line for line in asked.splitlines() if line.startswith("ask"))
    done = subprocess.run([settle, PATH, folder], input=lines, capture_output=True, text=True, check=True)
    assert {line.split()[0] for line in done.stdout.splitlines()} == {str(BALANCER_DECIDES)}


def test_spoiled_state_ends_nobody(tmp_path: Path) -> None:
    """A little of what `make fuzz` tries."""
    for says in fuzzed(tmp_path, 80 * len(POLICIES), 3):
        inputs, _, decided = (int(number) for number in re.findall(r"(\d+) ", says))
        assert inputs == 80
        assert decided > 100, "it is the files that are tried, and not the way to them"
