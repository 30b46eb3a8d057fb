"""A policy of a third party that is published, and what is drawn by its tables, in Python."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from balancer.core.errors import RoutingError
from balancer.core.kernel import picking
from balancer.core.settings import Settings
from balancer.front.folder import Folder
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.library import PATH, Library
from policies.base import BoolArray, FleetView, FloatArray, Policy, Request, least, option
from policies.columns import columns_of
from policies.hashing import mix, unit
from support.busy import MODELS
from support.settling import SEED, TAKEN, begin, endpoint, line_of, parts

ASKED = 0
SETTINGS = Settings(stale_after_s=1e9)
REQUEST = Request(MODELS[0])


@dataclasses.dataclass(frozen=True)
class Thirds(Policy):
    """The fewest in flight, in a loop that nothing compiles."""

    name: ClassVar[str] = "thirds"
    summary: ClassVar[str] = "The fewest in flight."
    source: ClassVar[str] = "These tests"

    reads: str = option("", "What it reads of the request beside the fleet")
    raises: bool = option(False, "Whether it raises")
    sheds: bool = option(False, "Whether it sheds")
    even: bool = option(False, "Whether all get the same")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the least; of a loop, as nothing else would do."""
        if self.raises:
            raise RuntimeError("thirds")
        if self.reads:
            getattr(fleet if self.reads in columns_of("request") else request, self.reads)
        shares = np.zeros(fleet.eligible.shape)
        for row, share in np.ndenumerate(least(fleet.in_flight * (not self.even), fleet.eligible)):
            shares[row] = 0.0 if self.sheds else share
        return shares


@dataclasses.dataclass(frozen=True)
class Other(Policy):
    """Shares by what is in flight, in a loop that nothing compiles."""

    name: ClassVar[str] = "other"
    summary: ClassVar[str] = "Fewer for whom more is in flight."
    source: ClassVar[str] = "These tests"

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Of a loop, as nothing else would do."""
        shares = np.zeros(fleet.eligible.shape)
        for row, able in np.ndenumerate(fleet.eligible):
            shares[row] = able / (1.0 + fleet.in_flight[row])
        return shares / max(shares.sum(), 1e-300)


def lacking(table: npt.NDArray[Any], in_flight: FloatArray, mask: BoolArray) -> FloatArray | None:
    """What each worker lacks by that table, as shares, `(n,)`; None: nobody anything, so that the balancer is asked."""
    content, n = table[0], len(mask)
    targets, levels = content["targets"][:, :n], int(content["levels"])
    if content["fixed"]:
        return _shares(np.where(mask, targets[0], 0.0))
    more, level = float((in_flight - content["base"][:n])[mask].sum()), 0
    while level + 1 < levels and more >= content["upto"][level]:
        level += 1
    tries = [(place, 0) for place in range(level, levels)] + [(levels - 1, 1 << power) for power in range(11)]
    found = (_shares(np.where(mask & (targets[to] > 0), targets[to] + beyond - in_flight, 0.0)) for to, beyond in tries)
    return next((shares for shares in found if shares is not None), None)


def _shares(weights: FloatArray) -> FloatArray | None:
    whole = picking.total_of(weights.clip(0.0).tolist())
    return weights.clip(0.0) / whole if whole > 0 else None


def drawn(shares: FloatArray, seed: int, number: int) -> tuple[int, float]:
    """Whom the lot falls on, and the share that it had."""
    listed = shares.tolist()
    row = picking.draw(listed, unit(mix(mix(seed) ^ number)))
    return row, listed[row] / picking.total_of(listed)


class PublishedEnvoy:
    """Beside a balancer whose policy is published."""

    request = REQUEST

    def __init__(self, program: subprocess.Popen[str], router: SharedRouter, now_ns: int) -> None:
        self.program, self.router, self.now_ns = program, router, now_ns

    @property
    def now_s(self) -> float:
        """Of the clock that a test turns."""
        return self.now_ns * 1e-9

    def decide(self, request: Request = REQUEST, grpc: bool = True) -> tuple[Any, ...]:
        """Answer, number, worker and propensity."""
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.write(f"{line_of(request, grpc, self.now_ns)}\n")
        self.program.stdin.flush()
        answer, number, _, _, propensity, words = parts(self.program.stdout.readline().rstrip("\n"))
        worker = str(words).partition(":")[0].rpartition(".")[2]
        row = int(worker) if answer == str(TAKEN) else -1
        return int(str(answer)), int(str(number)), row, propensity

    def end(self, nth: int, row: int) -> None:
        """The request of that decision, counted from 0."""
        assert self.program.stdin is not None
        self.program.stdin.write(f"end {self.now_ns} {nth} 0.01 0 {endpoint(f'w{row}', True)}\n")
        self.program.stdin.flush()

    def asks(self, request: Request = REQUEST) -> bool:
        """Whether the balancer is asked, which decides then."""
        asked: bool = self.decide(request)[0] == ASKED
        if asked:
            self.route(request)
        return asked

    def route(self, request: Request = REQUEST) -> None:
        """Have the balancer decide."""
        with suppress(RoutingError):
            self.router.route(request, self.now_s)

    def publish(self, after_ms: int = 10) -> None:
        """Another round, so many milliseconds later."""
        self.now_ns += after_ms * 1_000_000
        self.router.publish_tables(self.now_s)

    def begin(self, request: Request = REQUEST) -> None:
        """There is a table for such requests then."""
        assert self.asks(request)
        self.publish()

    @property
    def table(self) -> Any:
        """The only one."""
        (place,) = self.router.tables._places.values()
        return place.table

    def table_of(self, decider: int) -> Any:
        """For that policy; None: there is none that can be drawn by."""
        found = [place.table for place in self.router.tables._places.values() if place.decider == decider]
        return next((table for table in found if table["levels"][0]), None)


@contextmanager
def published_envoy(
    settle: Path, path: Path, policy: Policy, settings: Settings = SETTINGS
) -> Iterator[PublishedEnvoy]:
    """Beside a balancer of its own; `settle`: the program."""
    library, began_ns = Library(), time.monotonic_ns()
    router = SharedRouter(policy, settings, SEED, library, Module(library), Folder(path))
    begin(router, began_ns * 1e-9)
    names = router.fleet.names
    router.tell({n: endpoint(n, True) for n in names}, {n: endpoint(n, False) for n in names})
    router.serve(True)
    with subprocess.Popen([settle, PATH, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        try:
            yield PublishedEnvoy(program, router, began_ns + 60_000_000)
        finally:
            program.stdin.close()
    assert program.returncode == 0
