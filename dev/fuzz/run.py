"""One attack: warm up, attack, look whether all is as before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

from dev.fuzz import checks
from dev.fuzz.attack import KINDS, Attacker, Kind
from dev.fuzz.checks import Log, Size
from dev.fuzz.rig import Target

_CHUNK = 250
"""Inputs after which the balancer is looked at."""
_WARM_UP_SHARE = 0.3
"""Of the inputs, sent once before, from another seed: it fills caches, and lets heaps reach the size that they need."""
_WARM_UP_SEED = 1_000_003
_SEARCH_S = 10.0
"""How long the single input that raised an exception is looked for."""

Say = Callable[[str], None]


@dataclass
class Report:
    seed: int
    inputs: dict[str, int] = field(default_factory=dict)
    """By kind."""
    answers: dict[str, dict[str, int]] = field(default_factory=dict)
    """By kind and code."""
    refused: dict[str, float] = field(default_factory=dict)
    """By the balancer's own count: message and field, or reason."""
    before: Size | None = None
    after: Size | None = None
    took_s: float = 0.0
    exceptions: dict[str, dict[str, int]] = field(default_factory=dict)
    """In the balancer's log, by kind of the input."""
    culprits: list[str] = field(default_factory=list)
    """Single inputs that raised them, to be sent again by --replay."""
    deaths: list[str] = field(default_factory=list)
    bypassed: dict[str, int] = field(default_factory=dict)
    """Calls that are never balanced and yet reached a worker, by path."""
    grown: list[str] = field(default_factory=list)
    """Processes that are larger than they were."""
    findings: list[str] = field(default_factory=list)
    """All else that is not as it must be; both empty: the gateway held."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """Attacks a target with so many inputs."""

    def __init__(self, target: Target, seed: int, inputs: int, kinds: Sequence[Kind] = KINDS, say: Say = print) -> None:
        self._target = target
        self._say = say
        self._counts = shares(inputs, kinds)
        self._attacker = Attacker(target)
        self._log = Log(target)
        self._pid = target.balancer.process.pid
        self._known: set[tuple[str, str]] = set()
        self.report = Report(seed, inputs={kind.name: count for kind, count in self._counts.items()})

    async def run(self) -> Report:
        began_s = time.monotonic()
        report = self.report
        self._say(f"warming up with {sum(self._counts.values()) * _WARM_UP_SHARE:,.0f} inputs of another seed ...")
        for kind, count in self._counts.items():
            await self._attack(kind, int(count * _WARM_UP_SHARE), report.seed + _WARM_UP_SEED)
        problems = await self._honest()
        report.findings += [f"after the warm-up: {problem}" for problem in problems]
        report.before = await checks.settled(self._target)
        report.answers.clear()
        for kind, count in self._counts.items():
            await self._attack(kind, count, report.seed)
        problems = await self._honest()
        await self._attacker.close()
        report.after = await checks.settled(self._target, report.before)
        report.refused = await checks.refused(self._target)
        report.took_s = time.monotonic() - began_s
        report.findings += [*self._findings(), *problems]
        return report

    async def replay(self, kind: Kind, number: int) -> str:
        """Send one input; returns its answer."""
        (answer,) = await self._attacker.run(kind, self.report.seed, [number], at_once=1)
        return answer

    async def _attack(self, kind: Kind, count: int, seed: int) -> None:
        began_s, target = time.monotonic(), self._target
        # A forged stream takes a worker over from its agent, which then comes back: not while it is attacked.
        if kind.name == "reports":
            await target.be_silent()
        answers: Counter[str] = Counter()
        for first in range(0, count, _CHUNK):
            chunk = range(first, min(first + _CHUNK, count))
            answers += await self._attacker.run(kind, seed, chunk)
            await self._look(kind, seed, chunk)
        target.report()
        self.report.answers[kind.name] = dict(answers.most_common())
        took_s = time.monotonic() - began_s
        self._say(f"  {kind.name}: {count:,} inputs in {took_s:.0f} s; {_counted(answers)}")

    async def _look(self, kind: Kind, seed: int, chunk: range) -> None:
        """Whether the balancer lives, and whether its log shows something new."""
        if self._target.balancer.process.returncode is not None:
            await self._died(
                f"the balancer ended with status {self._target.balancer.process.returncode}", kind, seed, chunk
            )
        new = self._log.exceptions()
        if not new:
            return
        of_kind = Counter(self.report.exceptions.get(kind.name, {}))
        self.report.exceptions[kind.name] = dict((of_kind + new).most_common())
        for exception in new:
            if (key := (kind.name, exception)) not in self._known:
                self._known.add(key)
                await self._find(kind, seed, chunk, exception)

    async def _find(self, kind: Kind, seed: int, chunk: range, exception: str) -> None:
        """Send the inputs of a chunk one by one until the exception shows again."""
        deadline_s = time.monotonic() + _SEARCH_S
        for number in chunk:
            await self._attacker.run(kind, seed, [number], at_once=1)
            if self._target.balancer.process.returncode is not None:
                await self._died("the balancer ended", kind, seed, range(number, number + 1))
            if exception in self._log.exceptions():
                self._culprit(f"--seed {seed} --replay '{kind.name}:{number}' raises {exception}")
                return
            if time.monotonic() > deadline_s:
                break
        self._culprit(f"seed {seed}, {kind.name}, inputs {chunk.start} to {chunk.stop - 1} together: {exception}")

    async def _died(self, what: str, kind: Kind, seed: int, chunk: range) -> None:
        where = f"{what} during {kind.name}, seed {seed}, inputs {chunk.start} to {chunk.stop - 1}"
        self.report.deaths.append(where)
        self._say(f"  {where}; {self._target.balancer.log_tail()}")
        await self._target.start_balancer()
        await self._target.wait_ready()

    def _culprit(self, text: str) -> None:
        self.report.culprits.append(text)
        self._say(f"  {text}")

    async def _honest(self) -> list[str]:
        try:
            return [*await checks.honest(self._target), *await checks.columns(self._target)]
        except (aiohttp.ClientError, TimeoutError) as error:
            return [f"the admin pages do not answer after the attack: {error!r}"]

    def _findings(self) -> list[str]:
        report, target = self.report, self._target
        found = list(report.deaths)
        if target.balancer.process.pid != self._pid:
            found.append("the balancer is not the process that it was")
        found += [
            f"exceptions in the balancer's log while {kind} was sent: {_counted(Counter(counts))}"
            for kind, counts in report.exceptions.items()
        ]
        assert report.before is not None
        assert report.after is not None
        report.grown = checks.growth(report.before, report.after)
        for worker in target.workers:
            for path, count in worker.bypassed.items():
                report.bypassed[path] = report.bypassed.get(path, 0) + count
        if report.bypassed:
            found.append(f"calls that are never balanced reached a worker: {_counted(Counter(report.bypassed))}")
        return found

    async def count_handler_errors(self) -> None:
        """Read the balancer's own count of mistakes."""
        if errors := await checks.handler_errors(self._target):
            self.report.findings.append(f"balancer_handler_errors_total is not 0: {errors}")


def shares(inputs: int, kinds: Sequence[Kind]) -> dict[Kind, int]:
    whole = sum(kind.share for kind in kinds)
    return {kind: max(round(inputs * kind.share / whole), 1) for kind in kinds}


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.most_common(8))
