from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from simulation.builders import arrivals_of

from simulator.compare.pooled import pooled
from simulator.spec import BatchingSpec, FleetSpec, ModelSpec, NetworkSpec, Noise, ServiceTime, SimulatedWorker


def fleet(*speeds: float, models: tuple[ModelSpec, ...] | None = None, **fields: Any) -> FleetSpec:
    workers = tuple(SimulatedWorker(f"w{i}", speed=speed) for i, speed in enumerate(speeds))
    return FleetSpec(models or (ModelSpec("m", {"*": ServiceTime((1,), (0.010,))}),), workers, **fields)


def test_a_lone_request_takes_its_fastest_service_and_the_network() -> None:
    network = NetworkSpec(to_worker_s=0.001, to_client_s=0.002)
    found = pooled(fleet(1, 2, network=network), [arrivals_of([0.0]), arrivals_of([0.0], work=3.0)])
    np.testing.assert_allclose(found.mean_s, [0.008, 0.018])
    np.testing.assert_allclose(found.p99_s, found.mean_s)


def test_one_worker_is_its_own_pool() -> None:
    """With equal requests no order beats another, so the bound is what a single server does."""
    time_s = np.cumsum(np.random.default_rng(0).exponential(0.0125, 3000))
    found = pooled(fleet(1), [arrivals_of(time_s)], warm_up_share=0.0)
    latency_s = fifo(time_s, np.full((1, len(time_s)), 0.010))
    assert found.mean_s[0] == pytest.approx(latency_s.mean(), rel=1e-6)
    assert found.p99_s[0] == pytest.approx(np.quantile(latency_s, 0.99), rel=1e-6)


@pytest.mark.parametrize("load", [0.5, 0.95, 1.5])
def test_a_central_queue_of_unlike_workers_and_models_is_above_the_bound(load: float) -> None:
    generator = np.random.default_rng(1)
    models = (
        ModelSpec("a", {"fast": ServiceTime((1,), (0.004,)), "*": ServiceTime((1,), (0.010,))}),
        ModelSpec("b", {"fast": ServiceTime((1,), (0.050,)), "*": ServiceTime((1,), (0.060,))}),
    )
    spec = FleetSpec(models, tuple(SimulatedWorker(f"w{i}", "fast" if i < 2 else "old") for i in range(5)))
    model = generator.integers(0, 2, 2000)
    service_s = np.array([[0.004, 0.050]] * 2 + [[0.010, 0.060]] * 3)[:, model]
    time_s = np.cumsum(generator.exponential(0.0075 / load, 2000))
    latency_s = fifo(time_s, service_s)
    (bound_s,) = pooled(spec, [arrivals_of(time_s, model=model)], warm_up_share=0.0).mean_s
    alone_s = service_s.min(axis=0).mean()
    assert alone_s <= bound_s <= latency_s.mean()
    assert (bound_s > 2 * alone_s) == (load > 1)


def test_batches_lower_the_need_to_that_of_the_best_batch() -> None:
    model = ModelSpec("m", {"*": ServiceTime((1, 8), (0.010, 0.016))}, batching=BatchingSpec(max_batch_rows=8))
    found = pooled(fleet(1, models=(model,)), [arrivals_of(np.zeros(8))], warm_up_share=0.0)
    # All eight at once end at 16 ms; the bound may not say more.
    assert 0.010 <= found.mean_s[0] <= 0.016
    assert found.p99_s[0] == pytest.approx(0.016, rel=0.02)


def test_light_neighbours_make_a_batch_cheaper_than_a_heavy_request_alone() -> None:
    model = ModelSpec("m", {"*": ServiceTime((1, 2), (0.010, 0.010))}, batching=BatchingSpec(max_batch_rows=2))
    found = pooled(fleet(1, models=(model,)), [arrivals_of([0.0, 0.0], work=[0.5, 1.5])], warm_up_share=0.0)
    assert found.mean_s[0] <= 0.010  # both in one batch of mean work 1


def test_a_model_with_workers_to_spare_needs_nothing_of_the_scarce_ones() -> None:
    models = tuple(ModelSpec(name, {"*": ServiceTime((1,), (0.010,))}) for name in "ab")
    workers = (SimulatedWorker("w0", models=("a",)), *(SimulatedWorker(f"w{i}", models=("b",)) for i in range(1, 9)))
    time_s = np.repeat(np.cumsum(np.random.default_rng(2).exponential(0.0105, 2000)), 2)
    model = np.tile([0, 1], 2000)
    found = pooled(FleetSpec(models, workers), [arrivals_of(time_s, model=model)], warm_up_share=0.0)
    busy = fifo(time_s[::2], np.full((1, 2000), 0.010)).mean()  # model a alone on its worker, near its capacity
    assert busy > 0.05
    # Of the mean of both, a's queue is half; b's requests are at least half of their service after their midpoint.
    assert found.mean_s[0] == pytest.approx((busy + 0.005) / 2, rel=0.02)


def test_noise_that_varies_wildly_leaves_only_the_service_alone() -> None:
    wild = ModelSpec("m", {"*": ServiceTime((1,), (0.010,))}, noise=Noise("lognormal", 2.0))
    time_s = np.zeros(100)
    assert pooled(fleet(1, models=(wild,)), [arrivals_of(time_s)]).mean_s[0] == pytest.approx(0.010)
    assert pooled(fleet(1), [arrivals_of(time_s)]).mean_s[0] > 0.4


def test_a_closed_loop_has_no_bound() -> None:
    assert np.isnan(pooled(fleet(1), [arrivals_of([0.0, 0.0], clients=2)]).mean_s).all()


def fifo(time_s: npt.NDArray[np.float64], service_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Latencies where each request in turn goes to where it ends first; service `(n, k)`."""
    free_s = np.zeros(len(service_s))
    latency_s = np.zeros(len(time_s))
    for i, now_s in enumerate(time_s):
        ends_s = np.maximum(free_s, now_s) + service_s[:, i]
        best = int(np.argmin(ends_s))
        free_s[best] = ends_s[best]
        latency_s[i] = ends_s[best] - now_s
    return latency_s
