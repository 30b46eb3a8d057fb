"""The engine against theory where theory is exact: means over independent seeds, with confidence intervals.

Seeds are fixed, so nothing here changes from run to run. `agrees` asks for two things: that theory lies within the
interval, and that the interval is narrow enough to tell a wrong model from a right one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student
from simulation import theory
from simulation.builders import arrivals_of, fleet_of, model_of, prompting

from balancer.kernel.settings import Limits, Settings
from policies import BUILTIN
from policies.base import Policy
from simulator.arrivals import Arrivals
from simulator.result import FloatArray, Result, Status
from simulator.run import run
from simulator.spec import (
    DeviceSpec,
    FleetSpec,
    GeneratingDevice,
    GenerationSpec,
    NetworkSpec,
    Noise,
    Reports,
    SimulatedWorker,
)

SERVICE_S = 0.001
EXPONENTIAL = Noise("exponential")
ALONE = DeviceSpec()
ROUND_ROBIN = BUILTIN["round_robin"]()
SEEDS = 32
WARM_UP = 0.1
"""Share of each run that is left out, since it starts empty."""
CONFIDENCE = 0.999


def poisson_arrivals(rate: float, requests: int, seed: int, **columns: Any) -> Arrivals:
    time_s: Any = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests))
    return arrivals_of(time_s, **columns)


def single(noise: Noise = EXPONENTIAL, instances: int = 1, sharing: DeviceSpec = ALONE, **fields: Any) -> FleetSpec:
    """One worker, one model; it reports so rarely that reports cost no time here."""
    return many(1, noise, instances, sharing, **fields)


def many(
    workers: int, noise: Noise = EXPONENTIAL, instances: int = 1, sharing: DeviceSpec = ALONE, **fields: Any
) -> FleetSpec:
    specs = [SimulatedWorker(f"w{w}", sharing=sharing) for w in range(workers)]
    model = model_of(SERVICE_S, noise=noise, instances=instances)
    return fleet_of(model, workers=specs, **({"reports": Reports(period_s=1e6, delay_s=0.0)} | fields))


def simulate(
    fleet: FleetSpec, arrivals: Sequence[Arrivals], policy: Policy = ROUND_ROBIN, exact: bool = False
) -> Result:
    """A run of each seed, which Little's law must fit whatever the model is."""
    result = run(fleet, arrivals, policy, knowledge="exact" if exact else "reports")
    spent_s = result.latency_s - np.where(result.attempts > 0, fleet.network.to_client_s, 0.0)
    np.testing.assert_allclose(result.pending_integral_s, spent_s.sum(axis=1), rtol=1e-9)
    return result


def open_loop(
    fleet: FleetSpec,
    rate: float,
    policy: Policy = ROUND_ROBIN,
    *,
    requests: int = 50_000,
    seeds: int = SEEDS,
    exact: bool = False,
) -> Result:
    return simulate(fleet, [poisson_arrivals(rate, requests, seed) for seed in range(seeds)], policy, exact)


def settled(values: Any) -> Any:
    return values[:, int(WARM_UP * values.shape[1]) :]


def sojourn_s(result: Result) -> FloatArray:
    """Mean of each seed."""
    mean_s: FloatArray = settled(result.latency_s).mean(axis=1)
    return mean_s


def agrees(by_seed: FloatArray, expected: float, narrow: float = 0.02) -> None:
    """Fail unless the interval for the mean holds the expected value, and is within a share `narrow` of it."""
    mean = by_seed.mean()
    half = student.ppf((1 + CONFIDENCE) / 2, len(by_seed) - 1) * by_seed.std(ddof=1) / np.sqrt(len(by_seed))
    found = f"{mean:.6g} ± {half:.2g} ({half / expected:.2%}), theory says {expected:.6g}"
    assert half <= narrow * expected, f"too wide to tell: {found}"
    assert abs(mean - expected) <= half, found


def busy_share(result: Result) -> FloatArray:
    share: FloatArray = result.busy_s.mean(axis=1) / result.end_s
    return share


def test_one_exponential_server_mm1() -> None:
    rate = 0.7 / SERVICE_S
    result = open_loop(single(), rate)
    mean_s = theory.mm1_sojourn_s(rate, SERVICE_S)
    agrees(sojourn_s(result), mean_s)
    agrees(sojourn_s(result) - SERVICE_S, theory.mg1_wait_s(rate, SERVICE_S, cv=1.0), narrow=0.03)
    agrees(busy_share(result), 0.7, narrow=0.005)
    # Not the mean alone: the time in the system is exponential.
    for share in (0.5, 0.9, 0.99):
        quantiles_s = np.quantile(settled(result.latency_s), share, axis=1)
        agrees(quantiles_s, -mean_s * np.log1p(-share), narrow=0.04)


@pytest.mark.parametrize(
    ("noise", "cv", "load"),
    [
        (Noise("none"), 0.0, 0.8),
        pytest.param(Noise("lognormal", 0.5), 0.5, 0.7, marks=pytest.mark.long),
        pytest.param(Noise("lognormal", 1.5), 1.5, 0.6, marks=pytest.mark.long),
    ],
    ids=["MD1", "MG1-0.5", "MG1-1.5"],
)
def test_one_server_of_any_distribution_mg1(noise: Noise, cv: float, load: float) -> None:
    rate = load / SERVICE_S
    result = open_loop(single(noise), rate, requests=100_000)
    agrees(sojourn_s(result), SERVICE_S + theory.mg1_wait_s(rate, SERVICE_S, cv))
    agrees(busy_share(result), load, narrow=0.01)


def test_several_servers_and_one_queue_mmk() -> None:
    servers, rate = 4, 0.8 * 4 / SERVICE_S
    fleet = single(instances=servers, sharing=DeviceSpec(concurrency=servers, interference=0.0))
    result = open_loop(fleet, rate, requests=100_000)
    agrees(sojourn_s(result) - SERVICE_S, theory.mmk_wait_s(rate, SERVICE_S, servers), narrow=0.04)
    agrees(sojourn_s(result), SERVICE_S + theory.mmk_wait_s(rate, SERVICE_S, servers))
    agrees(busy_share(result), theory.mmk_busy_share(rate, SERVICE_S, servers), narrow=0.005)


@pytest.mark.parametrize("noise", [EXPONENTIAL, Noise("none")], ids=["MM1-PS", "MD1-PS"])
def test_a_shared_device_is_processor_sharing_and_insensitive(noise: Noise) -> None:
    # With 40 instances the 41st request would have to wait, which happens to one in 10^11 at this load.
    rate = 0.55 / SERVICE_S
    result = open_loop(single(noise, instances=40, sharing=DeviceSpec(concurrency=40)), rate, requests=30_000)
    agrees(sojourn_s(result), theory.mm1_sojourn_s(rate, SERVICE_S))


@pytest.mark.parametrize("noise", [EXPONENTIAL, Noise("lognormal", 1.5)], ids=["MMkk", "MGkk"])
def test_turned_away_where_all_servers_are_busy_erlang_b(noise: Noise) -> None:
    servers, offered = 5, 4.0
    full = Settings(limits=Limits(max_pending_per_worker=servers))
    sharing = DeviceSpec(concurrency=servers, interference=0.0)
    fleet = single(noise, instances=servers, sharing=sharing, settings=full)
    result = open_loop(fleet, offered / SERVICE_S, exact=True)
    agrees(settled(result.status == Status.SHED).mean(axis=1), theory.erlang_b(offered, servers))
    np.testing.assert_allclose(result.latency_s[result.status == Status.SHED], 0.0)


def test_urgent_requests_go_first() -> None:
    rates = (0.3 / SERVICE_S, 0.4 / SERVICE_S)
    fleet = fleet_of(model_of(SERVICE_S, noise=EXPONENTIAL, priority_levels=2), reports=Reports(period_s=1e6))
    arrivals = []
    for seed in range(SEEDS):
        poisson = poisson_arrivals(sum(rates), 50_000, seed)
        urgent = np.random.default_rng((seed, 1)).random(len(poisson)) < rates[0] / sum(rates)
        arrivals.append(replace(poisson, priority=np.where(urgent, 1, 2).astype(np.int16)))
    result = simulate(fleet, arrivals)
    for level, wait_s in enumerate(theory.priority_waits_s(rates, SERVICE_S, cv=1.0), 1):
        own = np.where(settled(result.priority) == level, settled(result.latency_s), np.nan)
        agrees(np.nanmean(own, axis=1), SERVICE_S + wait_s, narrow=0.03)


@pytest.mark.long
def test_random_is_many_single_servers() -> None:
    workers, load = 8, 0.6
    rate = load * workers / SERVICE_S
    result = open_loop(many(workers), rate, BUILTIN["random"]())
    mean_s = theory.mm1_sojourn_s(rate / workers, SERVICE_S)
    agrees(sojourn_s(result), mean_s)
    agrees(np.quantile(settled(result.latency_s), 0.9, axis=1), -mean_s * np.log1p(-0.9))


@pytest.mark.long
def test_round_robin_evens_out_the_arrivals() -> None:
    workers, rate = 8, 0.7 * 8 / SERVICE_S
    agrees(sojourn_s(open_loop(many(workers), rate)), theory.round_robin_sojourn_s(rate, SERVICE_S, workers))


def test_the_shorter_of_two_queues() -> None:
    rate = 0.8 * 2 / SERVICE_S
    result = open_loop(many(2), rate, BUILTIN["least_requests"](), requests=100_000)
    agrees(sojourn_s(result), theory.shorter_of_two_queues_sojourn_s(rate, SERVICE_S))


@pytest.mark.long
def test_power_of_two_in_a_large_fleet() -> None:
    # The limit is for infinitely many workers; with 256 the difference is below half a percent at this load.
    workers, load = 256, 0.7
    rate = load * workers / SERVICE_S
    result = open_loop(many(workers), rate, BUILTIN["power_of_two"](), requests=20_000, seeds=16)
    agrees(sojourn_s(result), theory.power_of_two_sojourn_s(rate / workers, SERVICE_S))


def test_batches_of_whatever_waits() -> None:
    # A batch costs 1 ms and 0.25 ms a row: at most 4 / 2 ms = 2000 rows a second.
    batch_s = (0.00125, 0.0015, 0.00175, 0.002)
    fleet = fleet_of(model_of(*batch_s, max_batch_rows=4), reports=Reports(period_s=1e6))
    result = open_loop(fleet, 1600.0)
    agrees(sojourn_s(result), theory.batching_sojourn_s(1600.0, lambda rows: batch_s[rows - 1], most=4))


@pytest.mark.long
def test_saturated_batching_has_the_rate_of_full_batches() -> None:
    batch_s = (0.00125, 0.0015, 0.00175, 0.002)
    fleet = fleet_of(model_of(*batch_s, max_batch_rows=4), reports=Reports(period_s=1e6))
    result = simulate(fleet, [arrivals_of([0.0] * 40_001)])
    # All come at once; the first starts alone, since nothing else was there when it came.
    assert result.end_s[0] == pytest.approx(batch_s[0] + 10_000 * batch_s[3])
    assert result.executions[0, 0] == 10_001


@pytest.mark.long
def test_clients_who_think_in_a_closed_loop() -> None:
    clients, think_s = 8, 0.004
    network = NetworkSpec(to_client_s=think_s, outcome_s=0.0)
    result = simulate(single(network=network), [arrivals_of([0.0] * 50_000, clients=clients)] * SEEDS)
    agrees(sojourn_s(result) - think_s, theory.closed_sojourn_s(clients, think_s, SERVICE_S))


def test_one_sequence_at_a_time_mg1() -> None:
    """Answers of geometric lengths, a step of equal length for each of their tokens."""
    mean_tokens, seeds = 8.0, range(SEEDS)
    rate = 0.7 / (mean_tokens * SERVICE_S)
    generation = GenerationSpec({"*": GeneratingDevice(10_000)}, step_tokens=8, max_sequences=1)
    fleet = fleet_of(model_of(SERVICE_S, generation=generation), reports=Reports(period_s=1e6, delay_s=0.0))
    output = [np.random.default_rng(1000 + seed).geometric(1 / mean_tokens, 20_000) for seed in seeds]
    result = simulate(
        fleet, [prompting(poisson_arrivals(rate, 20_000, seed), 1, output[seed].tolist()) for seed in seeds]
    )
    whole_s = mean_tokens * SERVICE_S
    wait_s = theory.mg1_wait_s(rate, whole_s, cv=np.sqrt(1 - 1 / mean_tokens))
    agrees(sojourn_s(result), whole_s + wait_s, narrow=0.03)
    agrees(settled(result.first_s).mean(axis=1), SERVICE_S + wait_s, narrow=0.04)
    agrees(busy_share(result), 0.7, narrow=0.01)
