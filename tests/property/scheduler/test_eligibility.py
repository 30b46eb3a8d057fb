"""What is kept of who is eligible equals what would be found anew, whatever happens and however time passes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import report

from balancer.kernel.settings import Settings
from balancer.scheduler.events import Event, ReportsLost, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from policies.least_requests import LeastRequests

workers = st.sampled_from(["a", "b", "c"])
events = st.one_of(
    st.builds(WorkerAdded, workers, draining=st.booleans()),
    st.builds(WorkerRemoved, workers),
    st.builds(ReportsLost, workers),
    st.builds(report, workers, st.integers(0, 100), ready=st.booleans()),
)
# Steps that a binary fraction holds exactly, some of which end just at the limit of 1 s.
steps = st.tuples(st.integers(0, 10).map(lambda eighths: eighths / 8), st.none() | events)


@settings(deadline=None)
@given(st.lists(steps, max_size=30))
def test_the_kept_mask_is_the_one_found_anew(history: list[tuple[float, Event | None]]) -> None:
    router = Router(LeastRequests(), Settings(stale_after_s=1.0))
    fleet, now_s = router.fleet, 0.0
    for name in "abc":
        router.observe(WorkerAdded(name), now_s)
        router.observe(report(name, -1), now_s)
    for wait_s, event in history:
        now_s += wait_s
        if event is not None:
            router.observe(event, now_s)
        servable = fleet.servable("m", "")
        fresh = servable & (now_s - fleet.reported_s <= 1.0)
        np.testing.assert_array_equal(fleet.eligible("m", "", now_s), fresh if fresh.any() else servable)
