"""Spoiled state for the module: `python -m benchmarks.fuzz.state`.

`spoil.c` decides and ends requests over a balancer's folder in which one file was cut short or changed
before it is looked at, or is changed while it is in use.
"""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import numpy as np

from balancer.core.events import ModelReport, Report, WorkerAdded
from balancer.core.settings import Limits, Settings, SplitSettings
from balancer.core.trials.split import Splits
from balancer.front.build import WITHOUT_HOOKS
from balancer.front.folder import Folder
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.library import PATH, Library
from policies import BUILTIN
from policies.base import FleetView, FloatArray, Policy, Request, least

WORKERS, MODELS = 21, ("a", "b", "c")
_PUBLISHED = "published"
POLICIES = ("wlpr", "prequal", "learned", "power_of_two", "round_robin", _PUBLISHED)
"""That differ in what they read of their options and the books; the last is no shipped one."""
_MODULE = PATH.parent / "module"
_STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror")
_SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_GUARDED = ("-Wl,--wrap=mmap", "-Wl,--wrap=munmap", "-Wl,--wrap=malloc", "-Wl,--wrap=free")


def compiled(target: Path) -> Path:
    """The program; no warning is borne."""
    files = [Path(__file__).with_name("spoil.c"), *WITHOUT_HOOKS]
    include = [f"-I{_MODULE}", f"-I{PATH.parent}"]
    command: list[str | Path] = [
        "cc",
        *_STRICT,
        *_SANITIZED,
        *_GUARDED,
        *include,
        "-o",
        target,
        *files,
        "-pthread",
        "-lm",
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return target


@dataclasses.dataclass(frozen=True)
class Published(Policy):
    """The fewest in flight, which is not compiled."""

    name: ClassVar[str] = _PUBLISHED
    summary: ClassVar[str] = "The fewest in flight."
    source: ClassVar[str] = "This fuzzer"

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """See `Policy`. The list is for nobody to trace it."""
        return np.array(least(fleet.in_flight, fleet.eligible).tolist())


def left_behind(path: Path, policy: str) -> Path:
    """A folder as a balancer leaves it that decides by the policy."""
    library = Library()
    settings = Settings(
        limits=Limits(max_pending_per_worker=6, sheddable_priority=2), stale_after_s=1e6, sticky_keys=True
    )
    decides = Published() if policy == _PUBLISHED else BUILTIN[policy]()
    router = SharedRouter(decides, settings, 5, library, Module(library), Folder(path))
    splits = Splits()
    splits.configure({MODELS[0]: SplitSettings(old="1", new="2", share=0.3)})
    router.share_splits(splits)
    now_s = time.monotonic()
    for number in range(WORKERS):
        router.observe(WorkerAdded(f"w{number}"), now_s)
        models = tuple(ModelReport(model, "1", ready=True, pending=float(number % 3)) for model in MODELS)
        router.observe(Report(f"w{number}", 1, 1, True, models=models), now_s)
    places = {name: f"10.0.0.{row}:8000" for row, name in enumerate(router.fleet.names)}
    router.tell(places, places)
    router.serve(True)
    if policy == _PUBLISHED:
        for model in MODELS:
            router.route(Request(model), now_s)
        router.publish_tables(now_s)
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
