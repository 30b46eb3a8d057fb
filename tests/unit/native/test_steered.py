"""With guard, rollout and shadow, module and balancer together decide as one router does, and learn as much."""

import dataclasses
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
from support.guarded import Moody
from support.settling import (
    MODELS,
    SEED,
    TAKEN,
    TURNED_AWAY,
    begin,
    busy_report,
    endpoint,
    endpoints_of,
    line_of,
    parts,
)

from balancer.kernel.compiled.library import PATH, Compiled, Library
from balancer.kernel.settings import EstimatorSettings, GuardSettings, RolloutSettings, Settings, TokenSettings
from balancer.native.enums import Source
from balancer.native.envoy_module import Module
from balancer.native.router import SharedRouter
from balancer.native.state import Folder
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.errors import Shed
from balancer.scheduler.events import Finished, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from policies import BUILTIN
from policies.base import Policy, Request

GUARD = GuardSettings(window_s=0.1, settle_s=0.02, window_every_s=0.5, report_age_s=1e9, quiet_s=0.2, max_quiet_s=0.4)
STEPS = RolloutSettings(shares=(0.3, 0.6, 1.0), step_s=1.2, min_requests=30, watch_s=1.0, watch_pairs=1, guard=GUARD)
LEAST, WLPR, RANDOM = BUILTIN["least_requests"](), BUILTIN["wlpr"](), BUILTIN["random"]()
PLANS = {
    "guard": CanaryPlan(guard=GUARD, baseline=LEAST),
    "guard that misses reports": CanaryPlan(guard=dataclasses.replace(GUARD, report_age_s=0.7), baseline=LEAST),
    "shadow": CanaryPlan(shadow=LEAST, shadow_share=0.2),
    "rollout": CanaryPlan(rollout=STEPS, new=RANDOM),
    "rollout to a policy that is not compiled": CanaryPlan(rollout=STEPS, new=Moody()),
    "all": CanaryPlan(GUARD, LEAST, WLPR, 0.1, STEPS, RANDOM, GUARD),
}
FEW_TOKENS = TokenSettings(capacity=2.0, refill_per_s=6.0)
SETTINGS = Settings(stale_after_s=1e9, estimators=EstimatorSettings(tokens=FEW_TOKENS))
POLICY = BUILTIN["expected_latency"]()
EVENTS = 2600
FAILED, DEADLINE, CANCELLED = 14, 4, 3
LEARN_EVERY_NS = 20_000_000
BALANCER_DECIDES = 0


class Pair:
    """Two routers to which the same happens: one alone, one over whose fleet state an Envoy decides too."""

    def __init__(self, envoy: subprocess.Popen[str], shared: SharedRouter, own: Router, now_ns: int) -> None:
        self.envoy, self.shared, self.own, self.now_ns = envoy, shared, own, now_ns
        self.exact = True
        self.flying: list[tuple[Decision, Decision, int | None, bool]] = []
        self.deciders: Counter[str] = Counter()
        """Of the requests that the router alone decided."""
        self.ended: Counter[str] = Counter()
        """Likewise, where Envoy decided and the request has ended."""
        self.left_to_balancer = self.shed = 0
        """Times that Envoy left a request to the balancer, and that nobody got one."""
        self._lines = 0

    @property
    def now_s(self) -> float:
        return self.now_ns * 1e-9

    def write(self, line: str) -> None:
        assert self.envoy.stdin is not None
        self.envoy.stdin.write(f"{line}\n")
        self.envoy.stdin.flush()

    def read(self) -> str:
        assert self.envoy.stdout is not None
        return self.envoy.stdout.readline().rstrip("\n")

    def observe(self, event: Any) -> None:
        self.wait()
        for router in (self.own, self.shared):
            router.observe(event, self.now_s)

    def ask(self, request: Request, grpc: bool) -> None:
        alone = route(self.own, request, self.now_s)
        self.write(line_of(request, grpc, self.now_ns))
        answer, number, _, _, propensity, words = parts(self.read())
        place: int | None = self._lines
        self._lines += 1
        together: Decision | str
        if answer == str(BALANCER_DECIDES):
            together, place = route(self.shared, request, self.now_s), None
            self.left_to_balancer += 1
        elif answer == str(TURNED_AWAY):
            together = str(words)
        else:
            assert answer == str(TAKEN)
            names = [f"w{each.partition(':')[0].rpartition('.')[2]}" for each in str(words).split(",")]
            # Who decided is told with its end, and compared then.
            by = alone.policy if isinstance(alone, Decision) else ""
            together = Decision(int(str(number)), names[0], tuple(names[1:]), float(str(propensity)), by, self.now_s)
        assert not self.exact or together == alone
        if not isinstance(alone, Decision) or not isinstance(together, Decision):
            self.shed += 1
            return
        self.deciders[alone.policy] += 1
        self.flying.append((alone, together, place, grpc))

    def finish(self, which: int, latency_s: float, status: int) -> None:
        alone, together, place, grpc = self.flying.pop(which)
        ok, void = {0: (True, ""), FAILED: (False, ""), CANCELLED: (False, "client"), DEADLINE: (False, "deadline")}[
            status
        ]
        routers: list[tuple[Router | SharedRouter, Decision]] = [(self.own, alone)]
        if place is None:
            routers.append((self.shared, together))
        else:
            self.write(f"end {self.now_ns} {place} {latency_s!r} {status} {endpoint(together.worker, grpc)} 0")
            self.ended[alone.policy] += 1
        for router, decision in routers:
            router.observe(Finished(decision.number, decision.worker, latency_s, ok, void), self.now_s)  # type: ignore[arg-type]  # of a table

    def wait(self) -> None:
        """Until Envoy has done all that it was told."""
        self.write("sync")
        assert self.read() == "done"

    def learn(self) -> None:
        self.wait()
        self.shared.learn()

    def all_outcomes(self) -> Counter[str]:
        """Who decided, as outcomes have it."""
        ended = [row for batch in self.shared.state.outcomes() for row in batch[batch["source"] == Source.BY_POLICY]]
        return Counter(self.shared.directory.policy_of(int(row["directory"]), int(row["decider"])) for row in ended)


def route(router: Router | SharedRouter, request: Request, now_s: float) -> Decision | str:
    try:
        return router.route(request, now_s)
    except Shed as error:
        return str(error)


@contextmanager
def pair(settle: Path, path: Path, plan: CanaryPlan, policy: Policy = POLICY) -> Iterator[Pair]:
    library, began_ns = Library(), time.monotonic_ns()
    own = Router(policy, SETTINGS, SEED, Compiled(library))
    shared = SharedRouter(policy, SETTINGS, SEED, library, Module(library), Folder(path))
    for router in (own, shared):
        begin(router, began_ns * 1e-9)
        router.configure(policy, SETTINGS, PolicySelector(policy, plan, SEED))
    names = own.fleet.names
    shared.list_endpoints(endpoints_of(names))
    shared.serve(True)
    with subprocess.Popen([settle, PATH, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as envoy:
        assert envoy.stdin is not None
        try:
            yield Pair(envoy, shared, own, began_ns + 60_000_000)
        finally:
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


def drive(both: Pair, dice: random.Random, learn_every_ns: int = 0, failing: str = "") -> None:
    """Requests, ends, reports, a worker that comes and goes.

    `learn_every_ns`: how often the balancer reads what was reported; `failing`: a policy half of whose requests fail.
    """
    learned_ns, reports = both.now_ns, 10
    for _ in range(EVENTS):
        both.now_ns += int(dice.expovariate(1 / 1.5e6))
        if both.now_ns - learned_ns >= learn_every_ns:
            learned_ns = both.now_ns
            both.learn()
        what, there = dice.random(), "w20" in both.own.fleet.index
        if what < 0.55:
            both.ask(a_request(dice), dice.random() < 0.7)
        elif what < 0.95 and both.flying:
            which = dice.randrange(min(len(both.flying), 40))
            status = dice.choices((0, FAILED, CANCELLED, DEADLINE), (90, 3, 4, 3))[0]
            if dice.random() < 0.5 and both.flying[which][0].policy == failing:
                status = FAILED
            both.finish(which, 0.03 * dice.lognormvariate(0, 0.5), status)
        elif what < 0.98:
            reports += 1
            both.observe(busy_report(dice.randrange(20), reports, everywhere=False))
        elif what < 0.983 and there:
            both.flying = [each for each in both.flying if each[0].worker != "w20"]
            both.observe(WorkerRemoved("w20"))
        elif what < 0.986 and not there:
            both.observe(WorkerAdded("w20"))
    both.learn()


@pytest.mark.parametrize("name", PLANS)
def test_they_decide_as_one_router_does(settle: Path, tmp_path: Path, name: str) -> None:
    dice, plan = random.Random(name), PLANS[name]
    with pair(settle, tmp_path / "shared", plan) as both:
        drive(both, dice)
        assert both.own.selector is not None
        assert both.shared.selector is not None
        assert both.shared.selector.explain(both.now_s) == both.own.selector.explain(both.now_s)
        assert both.all_outcomes() == both.ended
        assert len(both.deciders) > 1
        for guard in both.own.selector.guards().values():
            assert (guard.falls > 0) == ("misses" in name)
        if plan.rollout is not None:
            assert both.own.selector.rollout is not None
            assert both.own.selector.rollout.share == 1
        # What the shadow is asked about, what only Python can decide, and when a window or a step begins.
        left = both.deciders.total() * plan.shadow_share + both.deciders["moody"]
        assert left * 0.8 <= both.left_to_balancer < left * 1.2 + 50


def test_what_a_policy_sheds_counts_against_it(settle: Path, tmp_path: Path) -> None:
    policy = BUILTIN["token_bucket"](when_empty="shed")
    with pair(settle, tmp_path / "shared", PLANS["guard"], policy) as both:
        drive(both, random.Random("shed"))
        assert both.shed > 50
        guards = [
            router.selector.explain(both.now_s)["guards"] for router in (both.own, both.shared) if router.selector
        ]
        assert guards[0] == guards[1]
        assert guards[0][policy.name]["evidence_against"]["errors"] > 1


def test_a_rollout_returns_for_what_envoys_report(settle: Path, tmp_path: Path) -> None:
    with pair(settle, tmp_path / "shared", PLANS["rollout"]) as both:
        drive(both, random.Random("returns"), failing="random")
        assert both.own.selector is not None
        assert both.shared.selector is not None
        explained = both.shared.selector.explain(both.now_s)
        assert explained == both.own.selector.explain(both.now_s)
        assert explained["rollout"]["state"] == "returned"
        assert explained["decides"] == "expected_latency"


def test_what_is_learned_some_milliseconds_later_changes_little(settle: Path, tmp_path: Path) -> None:
    with pair(settle, tmp_path / "shared", PLANS["all"]) as both:
        both.exact = False
        drive(both, random.Random("later"), LEARN_EVERY_NS)
        recorded, ended = both.all_outcomes(), both.ended
        for policy in ended:
            assert recorded[policy] == pytest.approx(ended[policy], rel=0.1, abs=20)
        rollouts = [
            router.selector.explain(both.now_s)["rollout"] for router in (both.own, both.shared) if router.selector
        ]
        assert rollouts[0]["state"] == rollouts[1]["state"]
        for arm in ("old", "new"):
            assert rollouts[0][arm]["requests"] == pytest.approx(rollouts[1][arm]["requests"], rel=0.1)
