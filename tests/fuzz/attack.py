"""One attack: warm up, attack, look whether all is as before."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random

from fuzz import checks
from fuzz.kinds import Attacker, Kind
from fuzz.target import Target

_CHUNK = 250
"""Inputs after which the balancer is looked at."""
_WARM_UP_SHARE = 0.3
"""Of the inputs, sent once before, from another seed: it fills caches, and lets heaps reach the size that they need."""
_WARM_UP_SEED = 1_000_003
_AT_ONCE = 16


class Attack:
    """Sends a target so many inputs, each of which is made of seed, kind and number alone."""

    def __init__(self, target: Target, seed: int, say: Callable[[str], None]) -> None:
        self.answers: dict[str, Counter[str]] = {}
        """By kind."""
        self.findings: list[str] = []
        """What is not as it must be; empty: the gateway held."""
        self._target, self._seed, self._say = target, seed, say
        self._attacker, self._log = Attacker(target), checks.Log(target)

    async def run(self, inputs: int, kinds: Sequence[Kind]) -> list[str]:
        """Returns what has grown; all else that is not as it must be is in `findings`."""
        whole = sum(kind.share for kind in kinds)
        counts = {kind: max(round(inputs * kind.share / whole), 1) for kind in kinds}
        for kind, count in counts.items():
            await self._attack(kind, int(count * _WARM_UP_SHARE), self._seed + _WARM_UP_SEED)
        self.findings += [f"after the warm-up: {each}" for each in await checks.all_of(self._target)]
        before = await checks.settled(self._target)
        for kind, count in counts.items():
            await self._attack(kind, count, self._seed)
        self.findings += await checks.all_of(self._target)
        await self._attacker.close()
        after = await checks.settled(self._target, before)
        for name, size in after.items():
            self._say(f"  {name}: {size.rss_bytes / 1e6:,.1f} MB, before {before[name].rss_bytes / 1e6:,.1f}")
        return checks.growth(before, after)

    async def send(self, kind: Kind, seed: int, numbers: Iterable[int], at_once: int = _AT_ONCE) -> Counter[str]:
        """Send those inputs, some at a time; returns the answers, counted."""
        answers: Counter[str] = Counter()
        waiting = iter(numbers)

        async def client() -> None:
            for number in waiting:
                answers[await kind.send(self._attacker, generator(seed, kind, number))] += 1

        await asyncio.gather(*(client() for _ in range(at_once)))
        return answers

    async def _attack(self, kind: Kind, count: int, seed: int) -> None:
        # A forged stream takes a worker over from its agent, which then comes back: not while it is attacked.
        if kind.name == "reports":
            await self._target.be_silent()
        self.answers[kind.name] = Counter()
        for first in range(0, count, _CHUNK):
            chunk = range(first, min(first + _CHUNK, count))
            self.answers[kind.name] += await self.send(kind, seed, chunk)
            await self._look(kind, seed, chunk)
        self._target.report()
        counted = ", ".join(f"{each:,} {what}" for what, each in self.answers[kind.name].most_common(8))
        self._say(f"  {kind.name}: {count:,} inputs; {counted}")

    async def _look(self, kind: Kind, seed: int, chunk: range) -> None:
        """Whether the balancer lives, and whether its log shows an exception; each is found once, with its input."""
        where = f"{kind.name}, seed {seed}, inputs {chunk.start} to {chunk.stop - 1}"
        if (status := self._target.balancer.process.returncode) is not None:
            self._find(f"the balancer ended with status {status} during {where}; {self._target.balancer.log_tail()}")
            await self._target.start_balancer()
            await self._target.wait_ready()
        for exception in self._log.exceptions():
            if not any(exception in finding for finding in self.findings):
                self._find(f"{exception} during {await self._culprit(kind, seed, chunk, exception) or where}")

    async def _culprit(self, kind: Kind, seed: int, chunk: range, exception: str) -> str:
        """The single input that raises it, as `--replay` takes it; empty: none does alone."""
        for number in chunk:
            await self.send(kind, seed, [number], at_once=1)
            if exception in self._log.exceptions():
                return f"--seed {seed} --replay '{kind.name}:{number}'"
        return ""

    def _find(self, what: str) -> None:
        self.findings.append(what)
        self._say(f"  {what}")


def generator(seed: int, kind: Kind, number: int) -> Random:
    """What input `number` of a kind is made from."""
    return Random(f"{seed}/{kind.name}/{number}")
