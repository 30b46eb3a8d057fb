"""Production decides the same by the compiled library as by Python: every pick, refusal and number, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.core.errors import RoutingError
from balancer.core.events import (
    Finished,
    ModelReport,
    Report,
    ReportsLost,
    Withdrawn,
    WorkerAdded,
    WorkerRemoved,
)
from balancer.core.router import Router
from balancer.core.settings import EstimatorSettings, GuardSettings, Limits, RolloutSettings, Settings
from balancer.core.steering import Plan, Steering
from balancer.native.library import Compiled, Library
from policies import BUILTIN
from policies.base import FleetView, FloatArray, Policy, Request
from policies.learned import Learned
from policies.learned.loops import READS, fill_learned, scratch_size, weights_of

WORKERS, MODELS = 6, ("a", "b")
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "token_bucket": [{"when_empty": "shed"}],
    "consistent_hash": [{"load": "in_flight"}],
    "power_of_two": [{"weighted": True, "choices": 3}],
    "expected_latency": [{"temperature": 0.0}, {"temperature": 1.0}],
}
_CASES = [(name, options) for name in sorted(BUILTIN) for options in [{}, *_OPTIONS.get(name, [])]]
_KINDS = ["route"] * 6 + ["finish"] * 5 + ["report"] * 3 + ["tick", "withdraw", "lose", "add", "remove"]
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["route"] * 6 + ["finish"] * 5 + ["report"] * 3 + ["tick", "withdraw", "lose", "add", "remove"]
        ),
        st.integers(0, WORKERS - 1),
        st.integers(0, 2**64 - 1),
        st.sampled_from([0.0, 0.0001, 0.004, 0.3, 1.1]),
    ),
    min_size=10,
    max_size=120,
)


class LearnedInLoops(Learned):
    """`learned` by the loops that the library is made from, in Python; NumPy adds up in another order."""

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        weights, shares = weights_of(self.loaded.network), np.empty(len(fleet.eligible))
        columns = np.array([getattr(fleet, name) for name in READS])
        asked = float(request.rows), float(request.deadline_s), weights
        fill_learned(columns, fleet.eligible, *asked, np.zeros(scratch_size(len(shares), weights)), shares)
        return shares


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


class Host:
    """One router, told of everything in the same words."""

    def __init__(self, policy: Policy, settings: Settings, kernel: Compiled | None, steered: bool) -> None:
        self.router = Router(policy, settings, seed=7, kernel=kernel)
        if steered:
            plan = Plan(
                guard=GuardSettings(window_every_s=0.5),
                baseline=BUILTIN["least_requests"](),
                shadow=BUILTIN["wlpr"](),
                shadow_share=0.5,
                rollout=RolloutSettings(step_s=0.5, min_requests=2),
                new=BUILTIN["expected_latency"](),
            )
            self.router.configure(policy, settings, Steering(policy, plan, seed=3))
        self.sent: list[tuple[int, str]] = []
        self._reports = [0] * WORKERS

    def route(self, draw: int, now_s: float) -> object:
        request = Request(
            model=MODELS[draw % 2],
            rows=float(1 + draw % 5),
            key=draw if draw % 7 == 0 else None,
            sequence=draw % 21 == 0,
            deadline_s=0.02 if draw % 11 == 0 else float("inf"),
            priority=draw % 3,
        )
        try:
            decision = self.router.route(request, now_s)
        except RoutingError as error:
            return type(error), str(error)
        self.sent.append((decision.number, decision.worker))
        return decision

    def do(self, step: str, worker: int, draw: int, now_s: float) -> object:
        name = f"w{worker}"
        if step == "route":
            return self.route(draw, now_s)
        if step == "finish" and self.sent:
            number, picked = self.sent.pop(draw % len(self.sent))
            served = picked if draw % 5 else f"w{draw % WORKERS}"
            latency_s = None if draw % 13 == 0 else (draw % 1000) / 1e4
            self.router.observe(Finished(number, served if draw % 17 else "", latency_s, draw % 3 != 0), now_s)
        elif step == "withdraw" and self.sent:
            self.router.observe(Withdrawn(self.sent.pop()[0]), now_s)
        elif step == "report":
            self.router.observe(self.report(worker, draw), now_s)
        elif step == "lose":
            self.router.observe(ReportsLost(name), now_s)
        elif step == "add":
            self.router.observe(WorkerAdded(name, weight=1.0 + draw % 3, draining=draw % 4 == 0), now_s)
        elif step == "remove" and draw % 3 == 0:
            self.router.observe(WorkerRemoved(name), now_s)
        elif step == "tick":
            self.router.tick(now_s)
        return None

    def report(self, worker: int, draw: int) -> Report:
        self._reports[worker] += 1
        n = self._reports[worker]
        models = tuple(
            ModelReport(
                model,
                "1",
                ready=True,
                pending=float(draw % 6),
                executing=(draw % 20) / 10,
                succeeded=30 * n,
                max_batch_rows=4,
                instances=1 + worker % 2,
                batches=((1, 20 * n, 0.02 * n * (1 + worker)), (4, 5 * n, 0.011 * n)),
            )
            for model in MODELS
        )
        return Report(f"w{worker}", 1, n, ready=True, models=models, balancers=1 + worker % 3)

    def state(self) -> dict[str, np.ndarray]:
        fleet = self.router.fleet
        parts = fleet.queue, fleet.service, fleet.latency, fleet.tokens
        return {f"{type(part).__name__}.{name}": array for part in parts for name, array in vars(part).items()}


@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize(("name", "options"), _CASES)
@settings(deadline=None, max_examples=25)
@given(steps=_STEPS, limits=st.sampled_from([Limits(), Limits(max_pending_per_worker=3.0), Limits(shed_late=True)]))
def test_the_library_decides_as_python_does(
    library: Library, name: str, options: dict[str, Any], steered: bool, steps: list[Any], limits: Limits
) -> None:
    policy = BUILTIN[name](**options)
    settings_ = Settings(
        limits=limits,
        estimators=EstimatorSettings(profiles={("", "a"): (0.004, 0.001)}),
        stale_after_s=1.0,
    )
    plain = LearnedInLoops() if name == "learned" else policy
    hosts = [Host(plain, settings_, None, steered), Host(policy, settings_, Compiled(library), steered)]
    now_s = 0.0
    begin = [(step, worker, 2, 0.001) for worker in range(WORKERS - 1) for step in ("add", "report")]
    for number, (step, worker, draw, later_s) in enumerate([*begin, ("tick", 0, 0, 0.0), *steps]):
        now_s += later_s
        one, other = (host.do(step, worker, draw, now_s) for host in hosts)
        assert one == other, f"step {number}: {step}"
    states = [host.state() for host in hosts]
    for field, array in states[0].items():
        np.testing.assert_array_equal(states[1][field], array, err_msg=field)
