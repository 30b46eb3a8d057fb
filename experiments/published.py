"""What a policy loses by being published instead of asked: `python -m experiments.published`.

One fleet, simulated event by event: requests come at random and workers serve one after the other. Decisions are
production's own: by the router, which asks the policy for each request; or by the module in C, by tables that the
balancer computes every 10 ms. Both get the same arrivals and the same service times. For comparison, tables without
levels: the policy's answer as it stands for 10 ms, with and without what was sent since.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import click
import numpy as np

from balancer.core.events import Finished, ModelReport, Report, WorkerAdded
from balancer.core.router import Router
from balancer.core.settings import Settings
from balancer.front.build import SOURCES, WITHOUT_HOOKS
from balancer.front.folder import Folder
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.library import PATH, Compiled, Library
from policies.base import FleetView, FloatArray, Policy, Request, least

WORKERS, LOAD, SEED = 16, 0.8, 1
_SETTLE = Path(__file__).parents[1] / "tests" / "unit" / "front" / "settle.c"
_SETTINGS = Settings(stale_after_s=1e9)
_MODEL, _ASKED, _TAKEN = "m", "0", "2"


class Stranger(Policy):
    """By a third party, in what no program can carry."""

    source: ClassVar[str] = "This experiment"

    @abstractmethod
    def shares(self, fleet: FleetView) -> FloatArray:
        """What it answers, `(n,)`."""

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """See `Policy`."""
        # The same, out of what NumPy knows, so that nothing traces it.
        return np.array(self.shares(fleet).tolist())


@dataclasses.dataclass(frozen=True)
class Fewest(Stranger):
    """The fewest in flight."""

    name: ClassVar[str] = "fewest"
    summary: ClassVar[str] = "The fewest in flight, by a third party."

    def shares(self, fleet: FleetView) -> FloatArray:
        """See `Stranger`."""
        return least(fleet.in_flight, fleet.eligible)


@dataclasses.dataclass(frozen=True)
class Soonest(Stranger):
    """The least expected completion."""

    name: ClassVar[str] = "soonest"
    summary: ClassVar[str] = "The least expected completion, by a third party."

    def shares(self, fleet: FleetView) -> FloatArray:
        """See `Stranger`."""
        return least(fleet.completion_s, fleet.eligible)


@dataclasses.dataclass(frozen=True)
class Softly(Stranger):
    """Fewer in flight, likelier."""

    name: ClassVar[str] = "softly"
    summary: ClassVar[str] = "Shares that fall with what is in flight, by a third party."

    def shares(self, fleet: FleetView) -> FloatArray:
        """See `Stranger`."""
        weights = np.where(fleet.eligible, np.exp(-fleet.in_flight), 0.0)
        shares: FloatArray = weights / weights.sum()
        return shares


class Exact:
    """The policy is asked for each request."""

    def __init__(self, policy: Policy, now_ns: int) -> None:
        self.router = Router(policy, _SETTINGS, SEED, Compiled(Library()))
        _begin(self.router, now_ns)
        self._decisions: dict[int, int] = {}

    def pick(self, nth: int, now_ns: int) -> int:
        """Row of a worker."""
        decision = self.router.route(Request(_MODEL), now_ns * 1e-9)
        self._decisions[nth] = decision.number
        return int(decision.worker[1:])

    def end(self, nth: int, row: int, latency_s: float, now_ns: int) -> None:
        """Of the request."""
        self.router.observe(Finished(self._decisions.pop(nth), f"w{row}", latency_s, True), now_ns * 1e-9)

    def refresh(self, now_ns: int) -> float:
        """Nothing is published; seconds until that is so again."""
        return 1.0


class Published(Exact):
    """The module decides."""

    def __init__(self, policy: Policy, now_ns: int, settle: Path, folder: Path) -> None:
        library = Library()
        self.router = self.shared = SharedRouter(policy, _SETTINGS, SEED, library, Module(library), Folder(folder))
        _begin(self.router, now_ns)
        self.shared.tell({}, {f"w{row}": f"10.0.0.{row}:8000" for row in range(WORKERS)})
        self.shared.serve(True)
        self._decisions = {}
        self._program = subprocess.Popen(
            [settle, PATH, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines, self._numbers, self.asked = 0, dict[int, int](), 0

    def _write(self, line: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{line}\n")
        self._program.stdin.flush()

    def _read(self) -> list[str]:
        assert self._program.stdout is not None
        return self._program.stdout.readline().split()

    def pick(self, nth: int, now_ns: int) -> int:
        """See `Exact`."""
        self._write(f"ask {now_ns} 0 0 0 0 0 inf 0 1 {_MODEL} -")
        said = self._read()
        self._lines += 1
        if said[0] != _TAKEN:
            self.asked += 1
            return super().pick(nth, now_ns)
        self._numbers[nth] = self._lines - 1
        return int(said[-1].partition(":")[0].rpartition(".")[2])

    def end(self, nth: int, row: int, latency_s: float, now_ns: int) -> None:
        """See `Exact`."""
        line = self._numbers.pop(nth, None)
        if line is None:
            super().end(nth, row, latency_s, now_ns)
        else:
            self._write(f"end {now_ns} {line} {latency_s!r} -1 10.0.0.{row}:8000")

    def refresh(self, now_ns: int) -> float:
        """See `Exact`."""
        self._write("sync")
        self._read()
        for _ in self.shared.state.outcomes():
            pass
        return self.shared.publish_tables(now_ns * 1e-9)

    def close(self) -> None:
        """End the program."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        self._program.wait()


def _begin(router: Router, now_ns: int) -> None:
    for row in range(WORKERS):
        router.observe(WorkerAdded(f"w{row}"), now_ns * 1e-9)
        router.observe(Report(f"w{row}", 1, 1, True, models=(ModelReport(_MODEL, "1", ready=True),)), now_ns * 1e-9)
    router.tick(now_ns * 1e-9)


def latencies(decides: Exact, rate: float, count: int, seed: int) -> FloatArray:
    """Of `count` requests that come at `rate` a second, seconds, `(count,)`; the last three quarters."""
    dice = random.Random(seed)
    mean_s = LOAD * WORKERS / rate
    free_s, began_ns = [0.0] * WORKERS, time.monotonic_ns()
    speed = [0.7 + 0.6 * row / (WORKERS - 1) for row in range(WORKERS)]
    ends: list[tuple[float, int, int, float]] = []
    found, now_s, refresh_s = [], 0.0, 0.0

    def to_ns(at_s: float) -> int:
        return began_ns + int(at_s * 1e9)

    for nth in range(count):
        now_s += dice.expovariate(rate)
        work_s = dice.expovariate(1 / mean_s)
        while True:
            end_s = ends[0][0] if ends else np.inf
            if min(end_s, refresh_s) > now_s:
                break
            if refresh_s <= end_s:
                refresh_s += decides.refresh(to_ns(refresh_s))
            else:
                at_s, which, row, latency_s = heapq.heappop(ends)
                decides.end(which, row, latency_s, to_ns(at_s))
        row = decides.pick(nth, to_ns(now_s))
        free_s[row] = max(free_s[row], now_s) + work_s / speed[row]
        found.append(free_s[row] - now_s)
        heapq.heappush(ends, (free_s[row], nth, row, found[-1]))
    return np.array(found[count // 4 :])


@contextmanager
def published(policy: Policy, settle: Path, how: str, answer_s: float) -> Iterator[Published]:
    """`how`: as `HOW`; `answer_s`: what an answer is taken to cost, so that the machine's own load changes nothing."""
    with tempfile.TemporaryDirectory() as folder, patch("balancer.front.tables.time") as clocks:
        decides = Published(policy, time.monotonic_ns() - 100_000_000, settle, Path(folder, "shared"))
        clocks.thread_time = clocks.perf_counter = lambda: decides.shared.tables.asked * answer_s
        if how != "published":
            decides.shared.tables.most_levels = 1
        if how == "as it stands":
            state = decides.shared.state
            put = state.put_table

            def flat(place: int, table: Any) -> None:
                table["fixed"], table["levels"] = 1, min(table["levels"][0], 1)
                table["targets"] = np.maximum(table["targets"] - table["base"][:, None], 0)
                put(place, table)

            state.put_table = flat  # type: ignore[method-assign]  # nothing is taken off then
        try:
            yield decides
        finally:
            decides.close()


HOW = ("asked", "published", "one level", "as it stands")


@click.command()
@click.option("--rates", default="100,500,2000,5000", show_default=True, help="Requests a second.")
@click.option("--requests", default=20_000, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--answer-us", default=60.0, show_default=True, help="That an answer of the policy costs.")
def main(rates: str, requests: int, seeds: int, answer_us: float) -> None:
    """Run the command."""
    with tempfile.TemporaryDirectory() as made:
        settle = Path(made, "settle")
        files: list[str | Path] = ["-I", PATH.parent, "-I", SOURCES, "-o", settle, _SETTLE, *WITHOUT_HOOKS]
        wrapped = ("-Wl,--wrap=now_ns", "-Wl,--wrap=about_now_ns")
        subprocess.run(["cc", "-std=c11", "-O2", *wrapped, *files, "-pthread", "-lm", "-ldl"], check=True)
        for policy, rate in itertools.product((Fewest(), Soonest(), Softly()), map(float, rates.split(","))):
            for how in HOW:
                rows = []
                for seed in range(seeds):
                    if how == "asked":
                        found = latencies(Exact(policy, time.monotonic_ns() - 100_000_000), rate, requests, seed)
                    else:
                        with published(policy, settle, how, answer_us * 1e-6) as decides:
                            found = latencies(decides, rate, requests, seed)
                    service_s = LOAD * WORKERS / rate
                    rows.append((found.mean() / service_s, np.quantile(found, 0.99) / service_s))
                if how == "asked":
                    base = np.array(rows)
                ratio = np.median(np.array(rows) / base, axis=0)
                click.echo(f"{policy.name} {rate:.0f}/s {how}: mean {ratio[0]:.3f}, p99 {ratio[1]:.3f} of asked")


if __name__ == "__main__":
    main()
