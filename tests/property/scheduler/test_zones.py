"""Who is left by zones is what the rule says, worked out here from zones and expected completions alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import report
from support.kernel import FromSource

from balancer.kernel.compiled.library import Compiled, Library
from balancer.kernel.python_kernel import Kernel
from balancer.kernel.settings import Settings, ZoneSettings
from balancer.kernel.view import LiveView
from balancer.scheduler.events import Sent, WorkerAdded, WorkersAdded
from balancer.scheduler.router import Router
from policies.base import Request
from policies.least_requests import LeastRequests

ZONES = ["", "edge", "region", "core", "elsewhere", "abroad"]
zones = st.builds(
    ZoneSettings,
    own=st.sampled_from(ZONES),
    bound_s=st.sampled_from([0.0, 0.01, 0.025, 1.0]),
    order=st.lists(st.sampled_from(ZONES[1:5]), max_size=4, unique=True).map(tuple),
)
fleets = st.lists(
    st.tuples(st.sampled_from(ZONES), st.integers(0, 8), st.sampled_from([True, True, True, False])),
    min_size=1,
    max_size=9,
)
"""Of each worker: its zone, requests that lie there, whether it is ready."""


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return [Kernel(), FromSource(), Compiled(Library())]


def groups_of(zones: ZoneSettings) -> list[set[str]]:
    """Zones that are equally far from the balancer's, nearest first."""
    if not zones.own:
        return [set(ZONES)]
    named = [{zone} for zone in zones.order if zone != zones.own]
    return [{"", zones.own}, *named, set(ZONES) - {"", zones.own, *zones.order}]


def left(zones: ZoneSettings, stands: list[str], ready: list[bool], completion_s: list[float]) -> list[bool]:
    """The nearest groups up to the first whose best is within the bound of the best of all that are farther."""
    members = [[w for w, zone in enumerate(stands) if zone in group and ready[w]] for group in groups_of(zones)]
    best_s = [min((completion_s[w] for w in group), default=math.inf) for group in members]
    for place, near_s in enumerate(best_s):
        far_s = min(best_s[place + 1 :], default=math.inf)
        if near_s < math.inf and near_s <= far_s + zones.bound_s:
            kept = {w for group in members[: place + 1] for w in group}
            return [w in kept for w in range(len(stands))]
    return [False] * len(stands)


@settings(deadline=None)
@given(fleet=fleets, zones=zones)
def test_the_nearest_that_are_done_soon_enough_are_left(
    kernels: list[Kernel], fleet: list[tuple[str, int, bool]], zones: ZoneSettings
) -> None:
    stands, loads, ready = (list(column) for column in zip(*fleet, strict=True))
    for kernel in kernels:
        router = Router(LeastRequests(), Settings(zones=zones), kernel=kernel)
        names = [f"w{w}" for w in range(len(fleet))]
        router.observe(WorkersAdded(tuple(map(WorkerAdded, names))), 0.0)
        # Where they stand is heard of later for some: what was said before must give way.
        router.observe(WorkersAdded(tuple(WorkerAdded(n, zone=z) for n, z in zip(names, stands, strict=True))), 0.0)
        for w, name in enumerate(names):
            router.observe(report(name, ready=ready[w]), 0.0)
            for k in range(loads[w]):
                router.observe(Sent(1000 * (w + 1) + k, name, "m"), 0.0)
        everyone = np.ones(len(fleet), bool)
        view = LiveView(router.fleet, everyone, router.fleet.column("m"), Request("m"), 0.1)
        expected = left(zones, stands, ready, view.completion_s.tolist())
        if not any(ready):
            continue
        assert router.answer_now(Request("m"), 0.1).view.eligible.tolist() == expected
        assert router.route(Request("m"), 0.1).worker in [
            n for n, is_left in zip(names, expected, strict=True) if is_left
        ]
