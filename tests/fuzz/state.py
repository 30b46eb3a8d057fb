"""Spoiled state for the module.

`spoil.c` decides and ends requests over a balancer's folder in which one file was cut short or changed
before it is looked at, or is changed while it is in use.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from balancer.kernel.compiled.library import PATH, Library
from balancer.kernel.settings import Limits, Settings, SplitSettings
from balancer.native.build import WITHOUT_HOOKS
from balancer.native.envoy_module import Module
from balancer.native.folder import Folder
from balancer.native.header import SOURCES
from balancer.native.router import SharedRouter
from balancer.scheduler.canary.split import Splits
from balancer.scheduler.events import ModelReport, Report, WorkerAdded
from fuzz.request import SANITIZED, STRICT
from policies import BUILTIN

WORKERS, MODELS = 21, ("a", "b", "c")
POLICIES = ("wlpr", "prequal", "learned", "power_of_two", "round_robin")
"""That differ in what they read of their options and the fleet's state."""
_GUARDED = ("-Wl,--wrap=mmap", "-Wl,--wrap=munmap", "-Wl,--wrap=malloc", "-Wl,--wrap=free")


def compiled(target: Path) -> Path:
    sources = [Path(__file__).with_name("spoil.c"), *WITHOUT_HOOKS]
    flags = [*STRICT, *SANITIZED, *_GUARDED, f"-I{SOURCES}", f"-I{PATH.parent}"]
    command: list[str | Path] = ["cc", *flags, "-o", target, *sources, "-pthread", "-lm", "-ldl"]
    subprocess.run(command, check=True)
    return target


def left_behind(path: Path, policy: str) -> Path:
    """A folder as a balancer leaves it that decides by the policy."""
    library = Library()
    settings = Settings(
        limits=Limits(max_pending_per_worker=6, sheddable_priority=2), stale_after_s=1e6, sticky_keys=True
    )
    router = SharedRouter(BUILTIN[policy](), settings, 5, library, Module(library), Folder(path))
    splits = Splits()
    splits.configure({MODELS[0]: SplitSettings(old="1", new="2", share=0.3)})
    router.directory.share_splits(splits)
    now_s = time.monotonic()
    for number in range(WORKERS):
        router.observe(WorkerAdded(f"w{number}"), now_s)
        models = tuple(ModelReport(model, "1", ready=True, pending=float(number % 3)) for model in MODELS)
        router.observe(Report(f"w{number}", 1, 1, True, models=models), now_s)
    places = {name: f"10.0.0.{row}:8000" for row, name in enumerate(router.fleet.names)}
    router.list_endpoints(places, places)
    router.serve(True)
    return path


def fuzzed(folder: Path, inputs: int, seed: int) -> list[str]:
    """Try so many inputs over the folders of all `POLICIES`, and return what the program says of each.

    Args:
        folder: For the program.
        inputs: How many, all policies together.
        seed: Equal seeds spoil equal places.

    Raises:
        CalledProcessError: One ended the program.
    """
    program = compiled(folder / "spoil")
    return [_over(program, policy, inputs // len(POLICIES), seed) for policy in POLICIES]


def _over(program: Path, policy: str, inputs: int, seed: int) -> str:
    with tempfile.TemporaryDirectory() as made:
        shared, copy = left_behind(Path(made, "shared"), policy), Path(made, "copy")
        copy.mkdir()
        command: list[str | Path] = [program, PATH, shared, copy, str(inputs), str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return f"{policy}: {done.stdout.strip()}"
