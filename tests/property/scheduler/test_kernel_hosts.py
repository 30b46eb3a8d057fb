"""Production decides the same whoever runs the kernel: every pick, refusal and number, bit for bit.

NumPy over the view's columns is held to the kernel's own source, worker by worker, and to the compiled library.
"""

import dataclasses
import hashlib
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.example_plugin.example_policy import FreshestReport
from support.examples import examples
from support.kernel import FromSource
from support.strangers import Costs, Softmax
from support.weights import owing

from balancer.kernel.compiled.library import Compiled, Library
from balancer.kernel.python_kernel import Kernel
from balancer.kernel.settings import (
    EstimatorSettings,
    GuardSettings,
    Limits,
    ModelSettings,
    RolloutSettings,
    Settings,
    TokenSettings,
    ZoneSettings,
)
from balancer.scheduler.after_decision import Answered, Decision
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import (
    Event,
    Finished,
    FirstToken,
    ModelReport,
    Report,
    ReportsLost,
    Sent,
    SentPrompt,
    Withdrawn,
    WorkerAdded,
    WorkerRemoved,
)
from balancer.scheduler.router import Router
from policies import BUILTIN
from policies.base import Policy, Request
from policies.hashing import mix
from policies.traced import traced

WORKERS, MODELS, DEVICES, ZONES = 7, ("a", "b"), ("", "slow", "fast"), ("", "a", "b", "c")
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "token_bucket": [{"when_empty": "shed"}],
    "consistent_hash": [{"load": "in_flight"}],
    "power_of_two": [{"weighted": True, "choices": 3}],
    "expected_latency": [{"temperature": 0.0}, {"temperature": 1.0}],
}
_CASES = [(name, options) for name in sorted(BUILTIN) for options in [{}, *_OPTIONS.get(name, [])]]
TRACED = (FreshestReport(), Costs(), Softmax())
"""Those of third parties."""
_KINDS = ["route"] * 8 + ["finish"] * 5 + ["report"] * 5 + ["tick"] * 2
_KINDS += ["withdraw", "lose", "add", "remove", "old report", "restart", "sent", "configure", "first token"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(_KINDS),
        st.integers(0, WORKERS - 1),
        st.integers(0, 2**64 - 1),
        st.sampled_from([0.0, 0.0, 0.0001, 0.004, 0.3, 1.1]),
        st.sampled_from([1, 1, 3, 10]),
    ),
    min_size=10,
    max_size=80,
)
"""What happens, to which worker, a number that says the rest, how much later, and how often (requests alone)."""

_ESTIMATORS = st.builds(
    EstimatorSettings,
    latency_decay_s=st.sampled_from([10.0, 0.5]),
    error_decay_s=st.sampled_from([10.0, 2.0]),
    service_memory=st.sampled_from([200.0, 20.0]),
    service_memory_s=st.sampled_from([30.0, 2.0]),
    tokens=st.sampled_from([TokenSettings(), TokenSettings(capacity=3.0, refill_per_s=2.0, target_pending=4.0)]),
    profiles=st.sampled_from(
        [{}, {("", "a"): (0.004, 0.001)}, {("slow", "a"): (0.2, 0.01), ("fast", "a"): (0.001, 0.002)}]
    ),
)
SETTINGS = st.builds(
    Settings,
    models=st.sampled_from(
        [{}, {}, {"a": ModelSettings(versions=("1",))}, {"b": ModelSettings(devices=("slow",), memory_bytes=5)}]
    ),
    limits=st.sampled_from(
        [Limits(), Limits(), Limits(3.0), Limits(6.0, 2, 2.0), Limits(sheddable_priority=1), Limits(shed_late=True)]
    ),
    estimators=_ESTIMATORS,
    reports_required=st.sampled_from([True, True, True, False]),
    stale_after_s=st.sampled_from([1.0, 1.0, 5.0]),
    sticky_keys=st.sampled_from([True, True, False]),
    max_fallbacks=st.sampled_from([0, 2, 2, 9]),
    zones=st.sampled_from(
        [ZoneSettings(), ZoneSettings("a", 0.0), ZoneSettings("a", 0.01, ("b", "c")), ZoneSettings("b", 1.0, ("a",))]
    ),
    slow_start_s=st.sampled_from([0.0, 0.0, 1.0, 60.0]),
    sampled_workers=st.sampled_from([32.0, 32.0, 0.1, 0.3]),
    outcome_timeout_s=st.sampled_from([300.0, 2.0]),
)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


def _prompt(draw: int) -> dict[str, Any]:
    """A prompt of up to five blocks, which begins as some others do."""
    blocks = draw % 6
    prefix = tuple((mix(draw % 3 + 10 * block), 100.0 * (block + 1)) for block in range(blocks))
    return {"prompt_tokens": 100.0 * blocks + draw % 7, "prefix": prefix, "max_tokens": 60.0 * (draw % 5)}


class Host:
    """One router, told of everything in the same words."""

    def __init__(self, policy: Policy, settings: Settings, kernel: Kernel | None, canary: bool) -> None:
        self.router = Router(policy, settings, seed=7, kernel=kernel)
        if canary:
            plan = CanaryPlan(
                guard=GuardSettings(window_every_s=0.5),
                baseline=BUILTIN["least_requests"](),
                shadow=BUILTIN["wlpr"](),
                shadow_share=0.5,
                rollout=RolloutSettings(step_s=0.5, min_requests=2),
                new=BUILTIN["expected_latency"](),
            )
            self.router.configure(policy, settings, PolicySelector(policy, plan, seed=3))
        self.sent: list[tuple[int, str]] = []
        self._reports = [0] * WORKERS
        self._starts = [1] * WORKERS

    def do(self, step: str, worker: int, draw: int, now_s: float) -> object:
        """What came of a step: a decision or a refusal."""
        if step == "route":
            return self._route(draw, now_s)
        if step == "tick":
            self.router.tick(now_s)
        elif step == "configure":
            old = self.router.settings
            limits = dataclasses.replace(old.limits, max_pending_per_worker=[3.0, 9.0, float("inf")][draw % 3])
            changed = dataclasses.replace(old, limits=limits, max_fallbacks=draw % 4)
            self.router.configure(self.router.policy, changed, self.router.selector)
        else:
            event = self._event(step, worker, draw)
            if event is not None:
                self.router.observe(event, now_s)
        return None

    def _route(self, draw: int, now_s: float) -> object:
        request = Request(
            model=(*7 * MODELS, "", "unknown")[draw % 16],
            version=("", "", "", "1", "1", "1", "10")[draw // 8 % 7],
            rows=float(1 + draw % 5),
            # Some come again.
            key=(draw % 42 if draw % 5 else draw) if draw % 7 == 0 else None,
            sequence=draw % 14 == 0,
            deadline_s=(0.02, 0.1)[draw % 2] if draw % 11 < 3 else float("inf"),
            priority=draw % 3,
            **(_prompt(draw // 5) if draw % 5 < 2 else {}),
        )
        subset = {f"w{w}" for w in range(WORKERS) if draw >> w & 1} if draw % 19 == 0 else None
        allowed = np.flatnonzero(self.router.who_may(request, now_s, subset)[1])
        only = int(allowed[draw % len(allowed)]) if len(allowed) and draw % 23 == 0 else None
        try:
            decision = self.router.route(request, now_s, subset, only)
        except RoutingError as error:
            return type(error), str(error)
        self.sent.append((decision.number, decision.worker))
        return decision

    def _event(self, step: str, worker: int, draw: int) -> Event | None:
        name = f"w{worker}"
        event: Event | None = None
        if step == "finish" and self.sent:
            event = self._outcome(draw)
        elif step == "withdraw" and self.sent:
            event = Withdrawn(self.sent.pop()[0])
        elif step == "first token" and self.sent:
            event = FirstToken(self.sent[draw % len(self.sent)][0])
        elif step == "sent" and name in self.router.fleet.index:
            event = Sent(-1 - draw % 9, name, MODELS[draw % 2], 1.0 + draw % 3)
        elif step in ("report", "restart", "old report"):
            event = self._report(step, worker, draw)
        elif step == "lose":
            event = ReportsLost(name)
        elif step == "add":
            event = WorkerAdded(
                name, 1.0 + draw % 3, DEVICES[worker % 3], draw // 3 % 8, draw % 4 == 0, ZONES[worker % 4]
            )
        elif step == "remove" and draw % 3 == 0:
            event = WorkerRemoved(name)
        return event

    def _outcome(self, draw: int) -> Finished:
        number, picked = self.sent.pop(draw % len(self.sent))
        served = picked if draw % 5 else f"w{draw % WORKERS}"
        latency_s = None if draw % 13 == 0 else (draw % 1000) / 1e4
        void: Any = ("", "", "", "", "client", "deadline", "request")[draw % 7]
        return Finished(number, served if draw % 17 else "", latency_s, draw % 3 != 0, void, draw % 4)

    def _report(self, step: str, worker: int, draw: int) -> Report:
        """A report; an old one repeats the last number, a restarted worker counts from another speed on."""
        self._starts[worker] += step == "restart"
        self._reports[worker] += 0 if step == "old report" else 1 + draw // 64 % 2
        n, starts = self._reports[worker], self._starts[worker]
        models = tuple(
            ModelReport(
                model,
                version,
                ready=draw % 23 != 0,
                pending=float((draw >> 8 * i) % 6),
                executing=(draw >> 8 * i) % 20 / 10,
                succeeded=30 * n,
                max_batch_rows=4 + worker % 2,
                instances=1 + (worker + i) % 3,
                memory_tokens=1000 * (draw % 4),
                held_tokens=draw % 1000,
                batches=((1, 2 * n, 0.002 * n * (1 + worker) * starts), (4, n, 0.0022 * n * (1 + draw % 3))),
            )
            for i, model in enumerate(MODELS)
            for version in (("1", "10") if draw % 10 == 0 else ("1",))
        )
        known = models if draw % 9 else models[:1]
        device = DEVICES[draw % 3] if draw % 29 == 0 else ""
        stopping = draw % 31 == 0
        ready = draw % 37 != 0
        peers = None if draw % 4 == 0 else tuple((model, (draw >> 5 * i) % 9) for i, model in enumerate(MODELS[:-1]))
        prompts = [_prompt(draw >> 3 * i) for i in range(draw % 3)]
        extras = {
            **{"balancers": 1 + worker % 3, "peers_in_flight": peers, "peers_waiting_tokens": float(draw % 500)},
            "peers_prompts": tuple(SentPrompt(MODELS[0], each["prompt_tokens"], each["prefix"]) for each in prompts),
        }
        return Report(f"w{worker}", starts, n, ready, known, **extras, device=device, draining=stopping)

    def state(self) -> dict[str, np.ndarray]:
        names = "queue", "service", "latency", "tokens", "caches", "prefixes", "prefill", "decode", "lengths"
        fleet = self.router.fleet
        return {f"{part}.{name}": array for part in names for name, array in vars(getattr(fleet, part)).items()}


def assert_equal_all_along(one: Host, other: Host, steps: list[tuple[str, int, int, float, int]]) -> None:
    now_s = 0.0
    begin = [(step, worker, 2, 0.001, 1) for worker in range(WORKERS - 1) for step in ("add", "report")]
    for number, (step, worker, draw, later_s, times) in enumerate([*begin, ("tick", 0, 0, 0.0, 1), *steps]):
        now_s += later_s
        for i in range(times if step in ("route", "finish") else 1):
            each = mix(draw + i) if i else draw
            came = one.do(step, worker, each, now_s), other.do(step, worker, each, now_s)
            assert came[0] == came[1], f"step {number}: {step}"
    assert one.router.outcomes == other.router.outcomes
    assert one.router.failures == other.router.failures
    if one.router.selector is not None and other.router.selector is not None:
        explained = one.router.selector.explain(now_s), other.router.selector.explain(now_s)
        assert explained[0] == explained[1]
    states = one.state(), other.state()
    for field, array in states[0].items():
        np.testing.assert_array_equal(states[1][field], array, err_msg=field)


@pytest.mark.parametrize("policy", TRACED, ids=lambda policy: policy.name)
@settings(deadline=None, max_examples=examples(15))
@given(steps=STEPS, settings_=SETTINGS, canary=st.booleans())
def test_a_program_decides_alike_everywhere(
    library: Library, policy: Policy, steps: list[Any], settings_: Settings, canary: bool
) -> None:
    assert traced(policy).program is not None
    for kernel in (FromSource(), Compiled(library)):
        assert_equal_all_along(Host(policy, settings_, None, canary), Host(policy, settings_, kernel, canary), steps)


@pytest.mark.parametrize("canary", [False, True])
@settings(deadline=None, max_examples=examples(15))
@given(steps=STEPS, settings_=SETTINGS)
def test_tolls_are_the_same_everywhere(library: Library, canary: bool, steps: list[Any], settings_: Settings) -> None:
    tolls = {(model, f"w{i}"): 0.5 * (i % 3) for i in range(0, WORKERS, 2) for model in MODELS}
    policy = owing(tolls, {("a", "slow"): 2.0, ("b", "fast"): 1.0})
    hosts = (Host(policy, settings_, kernel, canary) for kernel in (FromSource(), Compiled(library)))
    assert_equal_all_along(*hosts, steps)


@pytest.mark.parametrize("canary", [False, True])
@pytest.mark.parametrize(("name", "options"), _CASES)
@settings(deadline=None, max_examples=examples(15))
@given(steps=STEPS, settings_=SETTINGS)
def test_the_library_decides_as_python_does(
    library: Library, name: str, options: dict[str, Any], canary: bool, steps: list[Any], settings_: Settings
) -> None:
    policy = BUILTIN[name](**options)
    # `learned` adds up in another order in NumPy.
    kernels = FromSource() if name == "learned" else None, Compiled(library)
    plain, compiled = (Host(policy, settings_, kernel, canary) for kernel in kernels)
    assert_equal_all_along(plain, compiled, steps)


class _Silent:
    """An observer that tells nobody. It is shown each decision before the pick is counted in."""

    def decided(self, answered: Answered, decision: Decision | None) -> None:
        """See `DecisionObserver`."""

    def refused(self, request: Request, error: RoutingError, at_s: float) -> None:
        """See `DecisionObserver`."""


@pytest.mark.parametrize(("name", "options"), _CASES)
@settings(deadline=None, max_examples=examples(10))
@given(steps=STEPS, settings_=SETTINGS, canary=st.booleans())
def test_the_library_decides_the_same_whether_or_not_somebody_watches(
    library: Library, name: str, options: dict[str, Any], steps: list[Any], settings_: Settings, canary: bool
) -> None:
    policy = BUILTIN[name](**options)
    at_once, seen = (Host(policy, settings_, Compiled(library), canary) for _ in range(2))
    seen.router.observer = _Silent()
    assert_equal_all_along(at_once, seen, steps)


_FROZEN = (
    Settings(zones=ZoneSettings("a", 0.01, ("b", "c")), slow_start_s=1.0),
    Settings(limits=Limits(6.0, 2, 2.0, shed_late=True), sticky_keys=False, outcome_timeout_s=2.0),
    Settings(models={"a": ModelSettings(versions=("1",)), "b": ModelSettings(devices=("slow",))}, max_fallbacks=9),
    Settings(reports_required=False, stale_after_s=5.0),
)


def _shown(value: object) -> str:
    """To nine digits, since the last bits of logarithms are each machine's own."""
    if isinstance(value, tuple):
        return f"({','.join(map(_shown, value))})"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("host", ["python", "source", "library"])
def test_decisions_are_what_they_have_been(library: Library, host: str) -> None:
    """One digest of all hosts; whoever means to change decisions writes another."""
    random, seen = Random(1), hashlib.sha256()
    for place, (name, options) in enumerate(_CASES):
        kernel = Compiled(library) if host == "library" else FromSource()
        plain = host == "python" and name != "learned"
        one = Host(BUILTIN[name](**options), _FROZEN[place % 4], None if plain else kernel, canary=place % 2 == 0)
        now_s = 0.0
        steps = [(step, worker) for worker in range(WORKERS - 1) for step in ("add", "report")]
        steps += [(random.choice(_KINDS), random.randrange(WORKERS)) for _ in range(400)]
        for step, worker in steps:
            now_s += random.choice([0.0, 0.0001, 0.004, 0.1])
            seen.update(_shown(one.do(step, worker, random.getrandbits(64), now_s)).encode())
        seen.update(_shown(tuple(tuple(array[array != 0].tolist()) for array in one.state().values())).encode())
    assert seen.hexdigest()[:16] == "5e8d4d458b710ccb"
