from collections import Counter

import numpy as np
from support.results import make_result
from unit.dev.experiments.sealed.synthetic import make_scenario, make_watch

from balancer.scheduler.canary.guard import PolicyChange
from balancer.scheduler.canary.switchback import Finding
from dev.experiments.sealed.runs import Run, Task, flat, from_flat, watched
from policies.power_of_two import PowerOfTwo
from simulator.compare.metrics import measure
from simulator.steered import BY_BASELINE, BY_POLICY, NOBODY, SteeredResult


def task(*seeds):
    return Task(make_scenario(), PowerOfTwo(), "power_of_two", "plain", seeds, 60)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for key, array in one.items():
        np.testing.assert_array_equal(array, other[key], err_msg=key)


def test_a_run_is_what_its_arrays_say():
    models = ("plain", "with/slash")
    latency_s = np.linspace(1, 2, 20).reshape(2, 10)
    metrics = measure(make_result(latency_s, models=models, model=np.tile([0, 1], (2, 5)).astype(np.int16)), 0.0)
    run = Run(metrics, np.array([3.0, 4.0]), make_watch(2))
    again = from_flat(flat(run))
    assert_equal(flat(again), flat(run))
    assert list(again.metrics.models) == list(models)
    assert again.watch.reasons == Counter(range=1, late=1)


def change(at_s, fell, reason="range"):
    return PolicyChange(at_s, fell, Finding(reason, ""), 10.0)


def test_time_out_of_service_lasts_to_the_return_or_the_end():
    end_s = np.array([10.0, 20.0])
    decided = np.array([[BY_BASELINE, BY_POLICY, BY_POLICY, NOBODY], [BY_POLICY] * 4], np.int8)
    # Two balancers: one falls at 2 and returns at 5, the other falls at 8 and stays so to the end at 10.
    changes = ((change(2.0, True), change(5.0, False), change(8.0, True, "late")), ())
    found = watched(SteeredResult(make_result(np.ones((2, 4)), end_s=end_s), decided, changes), balancers=2)
    np.testing.assert_allclose(found.fallen, [(3 + 2) / (10 * 2), 0.0])
    np.testing.assert_allclose(found.by_baseline, [0.25, 0.0])
    assert found.falls.tolist() == [2, 0]
    assert found.reasons == Counter(range=1, late=1)
