"""With guard, rollout and shadow, module and balancer together decide as one router does, and learn as much."""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.busy import MODELS, busy_report
from support.guarded import Moody
from support.settling import SEED, TAKEN, begin, endpoint, line_of, parts

from balancer.core.events import Finished, WorkerAdded, WorkerRemoved
from balancer.core.router import Decision, Router
from balancer.core.settings import GuardSettings, RolloutSettings, Settings
from balancer.core.trials.steering import Plan, Steering
from balancer.front.folder import Folder
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.library import PATH, Compiled, Library
from policies import BUILTIN
from policies.base import Policy, Request

GUARD = GuardSettings(window_s=0.1, settle_s=0.02, window_every_s=0.5, report_age_s=1e9, quiet_s=0.2, max_quiet_s=0.4)
STEPS = RolloutSettings(shares=(0.3, 0.6, 1.0), step_s=1.2, min_requests=30, watch_s=1.0, watch_pairs=1, guard=GUARD)
LEAST, WLPR, RANDOM = BUILTIN["least_requests"](), BUILTIN["wlpr"](), BUILTIN["random"]()
PLANS = {
    "guard": Plan(guard=GUARD, baseline=LEAST),
    "shadow": Plan(shadow=LEAST, shadow_share=0.2),
    "rollout": Plan(rollout=STEPS, new=RANDOM),
    "rollout to a policy that is not compiled": Plan(rollout=STEPS, new=Moody()),
    "all": Plan(GUARD, LEAST, WLPR, 0.1, STEPS, RANDOM, GUARD),
}
SETTINGS = Settings(stale_after_s=1e9)
EVENTS = 2600
BALANCER_DECIDES = 0


class Pair:
    """Two routers that are told the same: one alone, one whose books an Envoy decides over."""

    def __init__(self, envoy: subprocess.Popen[str] | None, folder: Folder, policy: Policy, plan: Plan) -> None:
        library = Library()
        self.own = Router(policy, SETTINGS, SEED, Compiled(library))
        self.shared = SharedRouter(policy, SETTINGS, SEED, library, Module(library), folder)
        self.envoy = envoy
        self.now_ns = time.monotonic_ns()
        self.native = 0
        self.exact = True
        self.deciders: Counter[tuple[str, str]] = Counter()
        self._asked = 0
        self._plan = plan
        self.flying: list[tuple[Decision, Decision, int | None, bool]] = []
        for router in (self.own, self.shared):
            begin(router, self.now_s)
            self.steer(router, policy)
        names = [worker.name for worker in self.own.fleet.workers]
        self.shared.tell({n: endpoint(n, True) for n in names}, {n: endpoint(n, False) for n in names})
        self.shared.serve(True)

    def steer(self, router: Router, policy: Policy) -> None:
        router.configure(policy, SETTINGS, Steering(policy, self._plan, SEED))

    @property
    def now_s(self) -> float:
        return self.now_ns * 1e-9

    def write(self, line: str) -> None:
        assert self.envoy is not None
        assert self.envoy.stdin is not None
        self.envoy.stdin.write(f"{line}\n")
        self.envoy.stdin.flush()

    def read(self) -> str:
        assert self.envoy is not None
        assert self.envoy.stdout is not None
        return self.envoy.stdout.readline().rstrip("\n")

    def observe(self, event: Any) -> None:
        for router in (self.own, self.shared):
            router.observe(event, self.now_s)

    def ask(self, request: Request, grpc: bool) -> None:
        alone = self.own.route(request, self.now_s)
        self.write(line_of(request, grpc, self.now_ns))
        answer, number, _, _, propensity, words = parts(self.read())
        nth, self._asked = self._asked, self._asked + 1
        if answer == str(BALANCER_DECIDES):
            together, place = self.shared.route(request, self.now_s), None
        else:
            assert answer == str(TAKEN)
            by_endpoint = {endpoint(name, grpc): name for name in self.own.fleet.names}
            worker, *others = (by_endpoint[each] for each in str(words).split(","))
            by = alone.policy  # what was told says who it was: compared at the end
            together = Decision(int(str(number)), worker, tuple(others), float(str(propensity)), by, self.now_s)
            place = nth
            self.native += 1
        if self.exact:
            assert together == alone
        self.deciders["alone", alone.policy] += 1
        self.deciders["by the balancer" if place is None else "expected of Envoy", together.policy] += 1
        self.flying.append((alone, together, place, grpc))

    def finish(self, which: int, latency_s: float, status: int) -> None:
        alone, together, place, grpc = self.flying.pop(which)
        ok, void = {0: (True, ""), 14: (False, ""), 3: (False, "client"), 4: (False, "deadline")}[status]
        self.own.observe(Finished(alone.number, alone.worker, latency_s, ok, void), self.now_s)  # type: ignore[arg-type]  # of a table
        if place is None:
            self.shared.observe(Finished(together.number, together.worker, latency_s, ok, void), self.now_s)  # type: ignore[arg-type]  # likewise
        else:
            self.write(f"end {self.now_ns} {place} {latency_s!r} {status} {endpoint(together.worker, grpc)}")

    def wait(self) -> None:
        """Until Envoy has done all that it was told."""
        self.write("sync")
        assert self.read() == "done"


@contextmanager
def pair(settle: Path, path: Path, policy: Policy, plan: Plan) -> Iterator[Pair]:
    folder = Folder(path)
    made = Pair(None, folder, policy, plan)
    with subprocess.Popen([settle, PATH, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as envoy:
        made.envoy = envoy
        try:
            yield made
        finally:
            assert envoy.stdin is not None
            envoy.stdin.close()
    assert envoy.returncode == 0


def a_request(dice: random.Random) -> Request:
    keyed = dice.random() < 0.1
    return Request(
        dice.choice(MODELS),
        rows=float(dice.randint(1, 4)),
        key=dice.getrandbits(64) if keyed else None,
        deadline_s=0.05 if dice.random() < 0.5 else math.inf,
        sequence=keyed and dice.random() < 0.5,
    )


def drive(both: Pair, dice: random.Random, learn_every_ns: int) -> None:
    """Requests, ends, reports, workers that come and go; `learn_every_ns`: how often the balancer looks. 0: at once."""
    learned_ns, reports = both.now_ns, 10
    for _ in range(EVENTS):
        both.now_ns += int(dice.expovariate(1 / 1.5e6))
        if both.now_ns - learned_ns >= learn_every_ns:
            learned_ns = both.now_ns
            both.wait()
            both.shared.learn()
        what = dice.random()
        if what < 0.55:
            both.ask(a_request(dice), dice.random() < 0.7)
        elif what < 0.95 and both.flying:
            status = dice.choices((0, 14, 3, 4), (90, 3, 4, 3))[0]
            both.finish(dice.randrange(min(len(both.flying), 40)), 0.03 * dice.lognormvariate(0, 0.5), status)
        elif what < 0.98:
            both.wait()
            reports += 1
            both.observe(busy_report(dice.randrange(20), reports, everywhere=False))
        elif what < 0.982 and "w20" in both.own.fleet.index:
            both.wait()
            both.flying = [each for each in both.flying if each[0].worker != "w20"]
            both.observe(WorkerRemoved("w20"))
        elif what < 0.984 and "w20" not in both.own.fleet.index:
            both.wait()
            both.observe(WorkerAdded("w20"))
    both.wait()
    both.shared.learn()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PLANS)
def test_they_decide_as_one_router_does(settle: Path, tmp_path: Path, name: str, seed: int) -> None:
    dice = random.Random(f"{name} {seed}")
    with pair(settle, tmp_path / "shared", BUILTIN["expected_latency"](), PLANS[name]) as both:
        drive(both, dice, 0)
        own, shared = both.own, both.shared
        assert own.steering is not None
        assert shared.steering is not None
        print(name, both.native, both.deciders, own.steering.explain(both.now_s))
        assert shared.steering.explain(both.now_s) == own.steering.explain(both.now_s)
