"""What workers of one kind of device have executed is what is expected of those of it that executed little."""

import numpy as np
import pytest
from support.estimators import allocate
from support.fleets import model, report

from balancer.bounds import MAX_DEVICE_KINDS
from balancer.kernel.estimators import service
from balancer.kernel.estimators.service import Service
from balancer.kernel.settings import EstimatorSettings, Settings
from balancer.scheduler.events import WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from balancer.scheduler.worker import kinds_of
from policies.expected_latency import ExpectedLatency

DEFAULT_S = 0.01
LOADED = model("m", max_batch_rows=8)


def known(kinds: list[float], times_s: list[float], executions: list[float]) -> Service:
    """Workers that executed so many batches of one row in so many seconds each, and priors made of that."""
    s = allocate(Service, len(kinds), 1)
    for w, (time_s, count) in enumerate(zip(times_s, executions, strict=True)):
        if count:
            service.observe(s, w, 0, 1, count, count * time_s, memory=200, waited=False)
    service.fade(s, np.array(kinds), 0, len(kinds), 0.0, DEFAULT_S)
    return s


def expected_s(s: Service) -> list[float]:
    return [float(each) for each in (s.fixed_s + s.per_row_s)[:, 0]]


def test_a_worker_that_executed_nothing_is_taken_for_what_its_like_are_and_not_for_the_fastest() -> None:
    s = known([0, 0, 0, 1], [0.5, 0.6, 0.0, 0.02], [40, 40, 0, 40])
    assert expected_s(s)[2] == pytest.approx(0.55, rel=0.05)


def test_the_first_executions_of_one_are_a_prior_for_its_like() -> None:
    s = known([0, 0], [0.5, 0.0], [2, 0])
    assert expected_s(s)[1] == pytest.approx((0.5 + DEFAULT_S) / 2, rel=0.05)


def test_batch_sizes_that_siblings_executed_make_the_line_together() -> None:
    s = allocate(Service, 3, 1)
    for w, rows in ((0, 1), (1, 8)):
        service.observe(s, w, 0, rows, 100, 100 * (0.010 + 0.002 * rows), memory=200, waited=False)
    service.fade(s, np.zeros(3), 0, 3, 0.0, DEFAULT_S)
    assert s.fixed_s[2, 0] == pytest.approx(0.010, rel=0.05)
    assert s.per_row_s[2, 0] == pytest.approx(0.002, rel=0.05)


def test_ten_executions_of_its_own_show_a_throttled_worker() -> None:
    s = known([0] * 4, [0.02, 0.02, 0.02, 0.2], [200, 200, 200, 10])
    assert expected_s(s)[3] > 0.75 * 0.2
    assert expected_s(s)[:3] == pytest.approx([0.02] * 3, rel=0.2)


def test_where_its_like_executed_nothing_the_fastest_that_is_well_known_is_the_prior() -> None:
    s = known([0, 0, 1, 2], [0.0, 0.0, 0.3, 0.1], [0, 0, 40, 40])
    assert expected_s(s)[:2] == pytest.approx([0.1] * 2, rel=0.1)


def test_what_was_slow_fades_to_its_like() -> None:
    s = known([0, 0, 1], [0.1, 0.9, 0.01], [40, 10, 40])
    for _ in range(8):
        service.observe(s, 0, 0, 1, 40, 4.0, memory=200, waited=False)
        service.observe(s, 2, 0, 1, 40, 0.4, memory=200, waited=False)
        service.fade(s, np.array([0.0, 0.0, 1.0]), 0, 3, 0.5, DEFAULT_S)
    assert expected_s(s)[1] == pytest.approx(0.1, rel=0.15)


def test_kinds_are_bounded_and_numbered_in_order() -> None:
    assert kinds_of(["T4", "", "A100", "T4", ""]) == [0, 1, 2, 0, 1]
    assert max(kinds_of(f"device {i}" for i in range(1000))) == MAX_DEVICE_KINDS - 1


def fleet(devices: list[str], profiles: dict[tuple[str, str], tuple[float, float]] | None = None) -> Router:
    router = Router(ExpectedLatency(), Settings(estimators=EstimatorSettings(profiles=profiles or {})))
    for i, device in enumerate(devices):
        router.observe(WorkerAdded(f"w{i}", device=device), 0.0)
        router.observe(report(f"w{i}", models=[LOADED]), 0.0)
    return router


def execute(router: Router, worker: str, time_s: float, *, device: str = "") -> None:
    """40 batches of one row."""
    for number, executions in ((2, 10), (3, 50)):
        executed = model("m", max_batch_rows=8, batches=((1, executions, executions * time_s),))
        router.observe(report(worker, number, [executed], device=device), 0.1 * number)


def prior_s(router: Router) -> dict[str, float]:
    s, column = router.fleet.service, router.fleet.models["m"]
    return dict(zip(router.fleet.names, (s.prior_fixed_s + s.prior_per_row_s)[:, column].tolist(), strict=True))


def test_a_fleet_learns_by_kind_and_a_profile_goes_first() -> None:
    router = fleet(["T4", "T4", "A100", "L4"], {("L4", "m"): (0.004, 0.001)})
    execute(router, "w0", 0.5)
    execute(router, "w2", 0.02)
    router.tick(1.0)
    found = prior_s(router)
    assert found["w1"] > 0.4
    assert found["w3"] == pytest.approx(0.005)


def test_kinds_stay_with_their_workers_when_one_leaves() -> None:
    router = fleet(["A100", "T4", "A100", "T4"])
    execute(router, "w1", 0.5)
    execute(router, "w2", 0.02)
    router.observe(WorkerRemoved("w0"), 0.5)
    assert router.fleet.decision.kind.tolist() == [0, 1, 0]
    router.tick(1.0)
    assert prior_s(router)["w3"] > 0.4


def test_a_device_that_only_the_agent_knows_counts_from_the_next_tick() -> None:
    router = fleet(["T4", "A100", ""])
    execute(router, "w0", 0.5)
    execute(router, "w1", 0.02)
    router.tick(1.0)
    before = prior_s(router)["w2"]
    router.observe(report("w2", 2, [LOADED], device="T4"), 1.5)
    router.tick(2.0)
    assert before < 0.03
    assert prior_s(router)["w2"] > 0.4


@pytest.mark.parametrize(
    ("executed", "counts_for"), [(0, service.PRIOR_EXECUTIONS), (10, 10), (30, 30), (180, 30)], ids=str
)
def test_what_others_of_its_kind_executed_counts_for_as_many_as_may(executed: float, counts_for: float) -> None:
    s = allocate(Service, 2, 1)
    for w, time_s, count in ((0, 0.1, executed), (1, 0.3, 20.0)):
        for _ in range(int(count)):
            # Without forgetting, so that weights are counts.
            service.observe(s, w, 0, 1, 1, time_s, memory=1e6, waited=False)
    service.fade(s, np.zeros(2), 0, 2, 0.0, DEFAULT_S, most_prior=30)
    like_s = s.prior_fixed_s[1, 0] + s.prior_per_row_s[1, 0]
    assert expected_s(s)[1] == pytest.approx((20 * 0.3 + counts_for * like_s) / (20 + counts_for), rel=1e-3)
