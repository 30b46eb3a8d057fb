"""Spoiled state for the module.

`spoil.c` decides and ends requests over a balancer's folder in which one file was cut short or changed
before it is looked at, or is changed while it is in use.
"""

import subprocess
import tempfile
import time
from pathlib import Path

from support.c_programs import SANITIZED, compiled
from support.settling import MODELS, a_shared, begin

from balancer.kernel.compiled.library import PATH
from balancer.kernel.settings import GuardSettings, Limits, RolloutSettings, Settings, SplitSettings
from balancer.native.build import WITHOUT_HOOKS
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.canary.split import Splits
from policies import BUILTIN

SETTINGS = Settings(limits=Limits(max_pending_per_worker=6, sheddable_priority=2), stale_after_s=1e6, sticky_keys=True)
POLICIES = ("wlpr", "prequal", "learned", "power_of_two", "round_robin")
"""That differ in what they read of their options and the fleet's state."""
_GUARDED = ("-Wl,--wrap=mmap", "-Wl,--wrap=munmap", "-Wl,--wrap=malloc", "-Wl,--wrap=free")


def left_behind(path: Path, policy: str) -> Path:
    """A folder as a balancer leaves it that decides by the policy, with a guard, a rollout and a split."""
    router, now_s = a_shared(path, BUILTIN[policy](), SETTINGS), time.monotonic()
    splits = Splits()
    splits.configure({MODELS[0]: SplitSettings(old="1", new="2", share=0.3)})
    router.directory.share_splits(splits)
    begin(router, now_s)
    plan = CanaryPlan(GuardSettings(), BUILTIN["least_requests"](), None, 0.0, RolloutSettings(), BUILTIN["random"]())
    selector = PolicySelector(router.policy, plan)
    selector.choose(0, now_s)
    router.configure(router.policy, SETTINGS, selector)
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
    program = compiled(folder / "spoil", *SANITIZED, *_GUARDED, Path(__file__).with_name("spoil.c"), *WITHOUT_HOOKS)
    return [_over(program, policy, inputs // len(POLICIES), seed) for policy in POLICIES]


def _over(program: Path, policy: str, inputs: int, seed: int) -> str:
    with tempfile.TemporaryDirectory() as made:
        shared, copy = left_behind(Path(made, "shared"), policy), Path(made, "copy")
        copy.mkdir()
        command: list[str | Path] = [program, PATH, shared, copy, str(inputs), str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return f"{policy}: {done.stdout.strip()}"
