"""What was measured beforehand of a device is believed until executions tell otherwise."""

from dataclasses import replace

import numpy as np
import pytest
from support.estimators import allocate
from support.fleets import model, report

from balancer.kernel.estimators import service
from balancer.kernel.estimators.service import Service
from balancer.kernel.settings import EstimatorSettings, Settings
from balancer.kernel.view import LiveView
from balancer.scheduler.events import WorkerAdded
from balancer.scheduler.router import Router
from policies.base import Request
from policies.expected_latency import ExpectedLatency

PROFILED = Settings(estimators=EstimatorSettings(profiles={("A100", "m"): (0.002, 0.0005), ("T4", "m"): (0.02, 0.005)}))
BATCHING = model("m", max_batch_rows=8)


def fleet(settings: Settings = PROFILED, devices: tuple[str, ...] = ("A100", "T4", "H100")) -> Router:
    """Workers, one of each device, that have reported the model and executed nothing."""
    router = Router(ExpectedLatency(), settings)
    for i, device in enumerate(devices):
        router.observe(WorkerAdded(f"w{i}", device=device), 0.0)
        router.observe(report(f"w{i}", models=[BATCHING]), 0.0)
    return router


def completion_s(router: Router, rows: float = 4.0) -> list[float]:
    workers = len(router.fleet.workers)
    return list(
        LiveView(
            router.fleet, np.ones(workers, bool), router.fleet.models["m"], Request("m", rows=rows), 0.0
        ).completion_s
    )


def test_the_first_request_is_predicted_by_the_profile_and_without_one_by_the_default() -> None:
    assert completion_s(fleet()) == pytest.approx([0.004, 0.040, 0.7 * 0.010 + 4 * 0.3 * 0.010])


def test_a_device_that_only_the_agent_knows_has_its_profile_from_its_first_report() -> None:
    router = Router(ExpectedLatency(), PROFILED)
    router.observe(WorkerAdded("w0"), 0.0)
    router.observe(report("w0", models=[BATCHING], device="T4"), 0.0)
    assert completion_s(router) == pytest.approx([0.040])


def test_new_settings_bring_and_take_profiles_while_requests_flow() -> None:
    router = fleet(Settings())
    before = completion_s(router)
    router.configure(ExpectedLatency(), PROFILED)
    assert completion_s(router)[:2] == pytest.approx([0.004, 0.040])
    router.configure(ExpectedLatency(), Settings())
    assert completion_s(router) == pytest.approx(before)


def test_the_profile_stays_with_its_worker_when_another_leaves() -> None:
    router = fleet()
    router.fleet.remove("w0")
    router.observe(WorkerAdded("w3", device="A100"), 0.0)
    router.observe(report("w3", models=[BATCHING]), 0.0)
    assert completion_s(router) == pytest.approx([0.040, 0.7 * 0.010 + 4 * 0.3 * 0.010, 0.004])


def test_executions_override_the_profile() -> None:
    router = fleet()
    for number in range(2, 30):
        executed = replace(BATCHING, batches=((4, 10 * number, 10 * number * 0.080),))
        router.observe(report("w0", number, [executed]), 0.01 * number)
    assert completion_s(router)[0] == pytest.approx(0.080, rel=0.05)
    assert completion_s(router)[1] == pytest.approx(0.040), "its neighbour is of another device"


def test_what_was_executed_fades_to_the_profile_and_not_to_the_fastest() -> None:
    s = allocate(Service, 2, 1)
    s.profile_fixed_s[1], s.profile_per_row_s[1] = 0.4, 0.1
    service.observe(s, 0, 0, 1, 100, 0.5, memory=100, waited=False)
    service.observe(s, 1, 0, 1, 100, 300.0, memory=100, waited=False)
    service.fade(s, np.arange(2.0), 0, len(s.weight), 0.0, default_s=1.0)
    assert s.fixed_s[1, 0] + s.per_row_s[1, 0] == pytest.approx(3.0, rel=0.1)
    service.fade(s, np.arange(2.0), 0, len(s.weight), 1.0, default_s=1.0)
    assert (s.fixed_s[1, 0], s.per_row_s[1, 0]) == pytest.approx((0.4, 0.1))
