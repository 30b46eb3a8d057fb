"""What guards, rollout and splits decided, in a small file, so that a balancer that crashed does not begin anew.

Whoever deletes the file, or changes what was decided about, has it decided again. A file that cannot be read, or says
what nobody wrote, counts as none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from balancer.config.config import Config
from balancer.files.off_loop import OffLoop
from balancer.files.regular import UnreadableError, read_regular, replace_file
from balancer.scheduler.canary import decided
from balancer.scheduler.canary.decided import Verdict
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.canary.split import Splits
from balancer.server.decision_log.lines import policy_hash
from policies.base import Policy

logger = logging.getLogger(__name__)

_MOST_BYTES = 2**20
_MOST_CHARACTERS = 1000
_STATES = (decided.FINISHED, decided.RETURNED, decided.FALLEN)
_LIMIT_S = 5.0
_EVERY_S = 0.5


class CanaryState:
    def __init__(self, file: Path | None) -> None:
        """`file`: None: nothing is kept."""
        self._file = file
        self._before = {} if file is None else _read(file)
        self._about: dict[str, str] = {}
        self._written = self._before
        self._looked_s = -math.inf
        self._writer: OffLoop[None] = OffLoop(_LIMIT_S)
        self._writing: asyncio.Task[None] | None = None

    def resume(
        self, config: Config, policy: Policy, selector: PolicySelector | None, splits: Splits, now_s: float
    ) -> None:
        """A config comes into force: guard, rollout and splits of the first one begin with what was decided before."""
        self._about = _about(policy, config.plan(policy), splits)
        verdicts = {name: verdict for name, (about, verdict) in self._before.items() if self._about.get(name) == about}
        self._before = {}
        decided.resume(selector, verdicts, now_s)
        decided.resume_splits(splits.of, verdicts)
        for name, verdict in verdicts.items():
            logger.info("decided before the start: %s is %s", name, verdict.state, extra={"reason": verdict.words})

    def tick(self, selector: PolicySelector | None, splits: Splits, now_s: float) -> None:
        if self._file is None or now_s - self._looked_s < _EVERY_S or (self._writing and not self._writing.done()):
            return
        self._looked_s = now_s
        found = decided.decided(selector, splits.of)
        kept = {name: (self._about[name], _cut(verdict)) for name, verdict in found.items() if name in self._about}
        if kept != self._written:
            # Also where it fails: tried again when something changes.
            self._written = kept
            self._writing = asyncio.get_running_loop().create_task(self._write(self._file, kept))

    async def _write(self, file: Path, kept: _State) -> None:
        try:
            await self._writer.run(lambda: _write(file, kept))
        except (OSError, TimeoutError) as error:
            remedy = "name a file that the balancer may write to in state_file, or null"
            logger.warning("what is decided is not kept for the next start: %s: %s; %s", file, error, remedy)


_State = dict[str, tuple[str, Verdict]]


def _cut(verdict: Verdict) -> Verdict:
    return verdict._replace(words=verdict.words[:_MOST_CHARACTERS])


def _about(policy: Policy, plan: CanaryPlan, splits: Splits) -> dict[str, str]:
    baseline = None if plan.baseline is None else policy_hash(plan.baseline)
    about = {decided.split_of(model): _digest(split.settings) for model, split in splits.of.items()}
    about[decided.GUARD] = _digest(policy_hash(policy), baseline, plan.guard)
    if plan.new is not None:
        about[decided.ROLLOUT] = _digest(policy_hash(policy), policy_hash(plan.new), plan.rollout)
        about[decided.NEW_GUARD] = _digest(policy_hash(plan.new), baseline, plan.guard_new)
    return about


def _digest(*parts: Any) -> str:
    plain = [dataclasses.asdict(part) if dataclasses.is_dataclass(part) else part for part in parts]  # type: ignore[arg-type]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def _read(file: Path) -> _State:
    try:
        content = json.loads(read_regular(file, _MOST_BYTES))
        return {str(name): _entry(each) for name, each in content["decided"].items()}
    except UnreadableError:
        return {}  # at the first start there is none
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        logger.warning("%s is not a file of what was decided; it counts as none", file)
        return {}


def _entry(each: Mapping[str, Any]) -> tuple[str, Verdict]:
    state, quiet_s = each["state"], float(each["quiet_s"])
    if state not in _STATES or not 0 <= quiet_s < math.inf:
        raise ValueError
    return str(each["about"]), _cut(Verdict(state, str(each["reason"])[:_MOST_CHARACTERS], str(each["words"]), quiet_s))


def _write(file: Path, kept: _State) -> None:
    content = {name: {"about": about, **verdict._asdict()} for name, (about, verdict) in kept.items()}
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, json.dumps({"decided": content}, indent=1).encode())


def state_file(config: Config, source: Path | None, process: int) -> Path | None:
    """Where process number `process` of the config file `source` keeps it; None: nowhere."""
    named = config.state_file
    if named is None or source is None:
        return None
    if named != "auto":
        return source.parent / f"{named}.{process}"
    folder = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if not folder:
        home = os.environ.get("HOME", "")
        state = os.environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
        if not state:
            return None
        folder = f"{state}/balancer"
    who = f"{source.resolve()} {config.listen.envoy}"
    return Path(folder) / f"{hashlib.sha256(who.encode()).hexdigest()[:12]}.json.{process}"
