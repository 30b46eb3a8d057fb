"""The rounds of a learner: record, train, look on, roll out, keep; and back at once where the fleet becomes another.

What is in force it says in one file (`balancer.config.learning`), which balancers follow; all else of it may be lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from balancer.config.config import load
from balancer.config.learning import NAME, Learned, Stage, Usual, read_learned, write_learned
from balancer.errors import OperatorError
from balancer.files.yaml_document import ConfigError
from balancer.learn.usual import Watched, look
from balancer.learn.worth import worth
from balancer.server.page.document import DOCUMENT, PageDocument
from policies.learned.artifact import read_artifact

logger = logging.getLogger(__name__)

RECORD = "record.jsonl"
LEAST_GAIN = 0.02
"""What is less is far below what a twin may be off by."""
_SECOND = 1.0
_FOLLOWED_S = 15.0
"""A balancer that has not done for so long what the file says will not."""
_KEPT_FILES = 10


class NothingLearnedError(OperatorError):
    """Training failed, or refused; the message says why."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a training is given."""

    number: int
    log: Path
    hours: float
    """Of the log, the last ones."""
    init: Path | None
    """A policy to begin with."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    every_s: float
    least_requests: int
    """That a log must have, about."""
    shadow_s: float
    least_gain: float = LEAST_GAIN
    """Share of the mean that a policy must gain to be tried."""


@dataclass(frozen=True, slots=True)
class World:
    """All that a learner asks of the world outside its folder."""

    pages: Callable[[], Awaitable[tuple[list[bytes], list[str]]]]
    """`/page.json` of the balancers that answer, and in words who does not; OperatorError: none can be asked."""
    train: Callable[[Round, Path], Awaitable[None]]
    """Train, and write the policy there; NothingLearnedError where that gives none."""
    sleep: Callable[[float], Awaitable[None]]
    unix_s: Callable[[], float]


class _AnotherFleetError(Exception):
    """What was learned is of a fleet that is no more."""


class _SwitchedOffError(Exception):
    """`learning.enabled` is false."""


class Learner:
    def __init__(self, config_path: Path, rhythm: Rhythm, world: World) -> None:
        """Raises `OperatorError` where the config names no folder to learn in, or none with decisions."""
        self._config_path, self._rhythm, self._world = config_path, rhythm, world
        config = load(config_path)
        log, learning = config.decision_log_folder(config_path), config.learning.folder
        if log is None or learning is None:
            field = "learning" if learning is None else "decision_log"
            raise OperatorError(f"{config_path}: {field}.folder names no folder; balancer learn needs one")
        self._log, self.folder = log, config_path.parent / learning
        self.folder.mkdir(parents=True, exist_ok=True)
        self._config, self._config_ns = config, -1
        before = read_learned(self.folder / NAME)
        self._kept = None if before is None else before.kept
        self._kept_for = None if before is None else before.kept_for
        self._number = max(map(_number_of, self.folder.glob("policy-*.npz")), default=0)
        self._watched = Watched()
        self._since_s = world.unix_s()
        self._tried_for: Usual | None = None
        """The fleet that what is tried is trained for."""
        self._shown: list[PageDocument] = []
        """By those balancers that are heard."""
        self._unheard = ""
        self._words_before = ""

    async def run(self) -> NoReturn:
        while True:
            try:
                await self._round()
            except _AnotherFleetError as why:
                self._kept = self._kept_for = None
                self._begin(f"fell back: {why}")
            except _SwitchedOffError:
                self._kept = self._kept_for = None
                self._put("stopped", "learning.enabled is false")
                await self._switched_on()
                self._begin("learning.enabled is true again")

    async def _round(self) -> None:
        """From recording to what became of it."""
        self._put("recording", self._words_before)
        while self._watched.requests < self._rhythm.least_requests:
            await self._second()
        usual = self._tried_for = self._watched.usual
        self._number += 1
        name = f"policy-{self._number}.npz"
        try:
            gains = await self._trained(name)
        except NothingLearnedError as error:
            await self._rest(str(error))
            return
        self._put("shadow", gains, tried=name)
        if failure := await self._looked_on():
            await self._rest(f"{name} was taken back: {failure}")
            return
        self._put("rollout", gains, tried=name)
        if failure := await self._rolled_out():
            await self._rest(f"{name} was taken back: {failure}")
            return
        self._kept, self._kept_for = name, usual
        await self._rest(f"{name} proved itself: {gains}")

    async def _trained(self, name: str) -> str:
        """What the policy gains, in words; NothingLearnedError where there is none worth trying."""
        self._put("training", f"about {self._watched.requests:.0f} requests were recorded")
        hours = max(self._world.unix_s() - self._since_s, _SECOND) / 3600
        init = None if self._kept is None else self.folder / self._kept
        written = self.folder / name
        training = self._world.train(Round(self._number, self._log, hours, init), written)
        await self._while_(training)
        found = worth(
            read_artifact(written.read_bytes(), str(written)).record, init is not None, self._rhythm.least_gain
        )
        if not found.tries:
            raise NothingLearnedError(found.words)
        return found.words

    async def _while_(self, training: Awaitable[None]) -> None:
        """Until it is done, watching."""
        task = asyncio.ensure_future(training)
        try:
            while not task.done():
                await self._second()
        finally:
            task.cancel()  # of one that is done, nothing
            await asyncio.wait([task])
        await task

    async def _looked_on(self) -> str:
        """Why a policy that only looks on is not to be tried further; empty: it is."""
        begun_s, seen = self._world.unix_s(), False
        while self._world.unix_s() - begun_s < self._rhythm.shadow_s:
            await self._second()
            shadows = self._canaries("shadow")
            seen = seen or bool(shadows)
            for shadow in shadows:
                if shadow.get("failures"):
                    return f"it failed as a shadow: {shadow.get('last_failure')}"
            if not seen and self._world.unix_s() - begun_s > _FOLLOWED_S:
                break
        return "" if seen else self._not_followed("shadow")

    async def _rolled_out(self) -> str:
        """Why a policy is not to be kept; empty: it has proven itself."""
        begun_s, seen = self._world.unix_s(), False
        while True:
            await self._second()
            rollouts = self._canaries("rollout")
            seen = seen or bool(rollouts)
            for rollout in rollouts:
                if rollout.get("state") == "returned":
                    return f"the rollout returned: {rollout.get('why')}"
            if rollouts and all(rollout.get("state") == "finished" for rollout in rollouts):
                return ""
            if not seen and self._world.unix_s() - begun_s > _FOLLOWED_S:
                return self._not_followed("rollout")

    def _canaries(self, part: str) -> list[dict[str, Any]]:
        """What each balancer that tries the learned policy says of its shadow or rollout, as `part` names it."""
        found = (shown.canary.get(part) for shown in self._shown)
        return [own for own in found if isinstance(own, dict) and (own.get("policy") or own.get("to")) == "learned"]

    def _not_followed(self, section: str) -> str:
        if getattr(self._config, section) is not None:
            return f"the config has a {section} of its own"
        problems = [each for shown in self._shown for each in shown.config.problems] or [self._unheard]
        return f"the balancer does not take it up: {problems[0] or 'does it follow this config file?'}"

    async def _rest(self, words: str) -> None:
        """Until the next time, by what was learned so far."""
        self._put("resting", words)
        self._forget_files()
        begun_s = self._world.unix_s()
        self._begin(words)
        while self._world.unix_s() - begun_s < self._rhythm.every_s:
            await self._second()

    def _begin(self, words: str) -> None:
        """What comes from now on is learned from next."""
        self._tried_for, self._watched, self._since_s = None, Watched(), self._world.unix_s()
        self._words_before = words

    async def _second(self) -> None:
        """Wait, and look.

        Raises:
            _SwitchedOffError: the config says so.
            _AnotherFleetError: the fleet is not the one that what is in force, or tried, was trained for.
        """
        await self._world.sleep(_SECOND)
        if not self._enabled():
            raise _SwitchedOffError
        await self._hear()
        if not self._shown:
            return
        seen = look(self._shown)
        self._watched.take(seen, _SECOND)
        for usual in filter(None, (self._kept_for, self._tried_for)):
            if why := self._watched.differs(seen, usual):
                raise _AnotherFleetError(why)

    async def _hear(self) -> None:
        """Ask all balancers for their pages, and keep those that come."""
        self._shown = []
        try:
            said, unheard = await self._world.pages()
        except OperatorError as error:
            said, unheard = [], [str(error)]
        for page in said:
            try:
                self._shown.append(DOCUMENT.validate_json(page))
            except ValidationError as error:
                unheard.append(str(error))
        if unheard and not self._unheard:
            logger.warning("not heard: %s", unheard[0])
        self._unheard = unheard[0] if unheard else ""

    def _enabled(self) -> bool:
        """By the config as it is now; as it was, where it cannot be read."""
        try:
            changed_ns = self._config_path.stat().st_mtime_ns
            if changed_ns != self._config_ns:
                self._config_ns = changed_ns
                self._config = load(self._config_path)
        except (OSError, ConfigError) as error:
            logger.warning("the config is as it was: %s", error)
        return self._config.learning.enabled

    async def _switched_on(self) -> None:
        while not self._enabled():
            await self._world.sleep(_SECOND)

    def _put(self, stage: Stage, words: str, tried: str | None = None) -> None:
        """In force from now on, and on the record."""
        now_s = self._world.unix_s()
        learned = Learned(
            stage=stage, since_s=now_s, words=words[:500], kept=self._kept, tried=tried, kept_for=self._kept_for
        )
        logger.info("%s", learned.in_words())
        told = learned.model_dump(include={"stage", "words", "kept", "tried"})
        line = {"at": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")} | told
        try:
            write_learned(self.folder / NAME, learned)
            with open(self.folder / RECORD, "a", encoding="utf-8") as record:
                record.write(json.dumps(line) + "\n")
        except OSError as error:
            remedy = (
                "what was in force stays: give it room and the right to write there, or set learning.enabled: false"
            )
            raise OperatorError(f"{self.folder} cannot be written to ({error.strerror}); {remedy}") from error

    def _forget_files(self) -> None:
        files = sorted(self.folder.glob("policy-*.npz"), key=_number_of)
        for file in files[:-_KEPT_FILES]:
            if file.name != self._kept:
                file.unlink(missing_ok=True)


def _number_of(file: Path) -> int:
    number = file.stem.removeprefix("policy-")
    return int(number) if number.isdecimal() else 0
