"""A reference that minds others: who sees all true queues, and charges a request for the delay that it causes.

The clairvoyant beside it is selfish: it sends each request where that one is done first. This one adds to the request's
own completion, at each worker,

    s * (share * pending + price * toll)

with s the device seconds that the request adds there. The first term is for those who wait already, the second for
those who will come. The toll of a worker is the externality of a second of its device, where the requests are split
over workers as is best for all: with random routing a shared device at utilisation r holds r / (1 - r) requests in the
mean, a second more of work a second raises that by 1 / (1 - r)^2, of which the request itself bears 1 / (1 - r), so the
toll is r / (1 - r)^2. The split is the convex program of Bell and Stidham 1983, Individual versus social optimization
in the allocation of customers to alternative servers (Management Science 29), over all models, with known rates and
service times; solved by conditional gradients (Frank, Wolfe 1956).

Queues that are seen make the toll of a random split too high, so `share` and `price` are searched for each scenario:
the pair of a small grid with the least mean latency, on arrivals and seeds that judge nothing.

Limits. It is a policy and no bound: one request at a time, at once, greedily, within one family of costs, and chosen by
the mean, so its p99 may be beaten. Completions are the clairvoyant's: all that is queued goes first, though models take
turns on a device. It knows nothing of faults to come, and a worker that fails fast looks idle to it. Where the rate is
not known beforehand (a closed loop) there is no toll, and utilisations count as 0.95 at most.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from policies import BUILTIN
from policies.base import FloatArray, least
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.capacity import seconds_of, sharing_gain
from simulator.compare.metrics import measure
from simulator.result import Result
from simulator.scenario import Scenario
from simulator.spec import FleetSpec

SHARES = (0.0, 0.2, 0.5, 1.0, 2.0)
PRICES = (0.0, 0.05, 0.15, 0.5, 1.5)
SEARCH_SEED = (1 << 31) + (1 << 21)
"""The first of those that the search plays: judged are others."""
_SEARCH_SEEDS = 3
_SEARCH_REQUESTS = 3000
_FULL = 0.95
"""Utilisation from which on the number in the system is taken to grow along its tangent."""
_STEPS = 3000
_PLACER = BUILTIN["expected_latency"]()
"""Stands for any policy that does not go by keys, where it is asked whether the router's hash places them."""


def run_social(
    scenario: Scenario,
    arrivals: Sequence[Arrivals],
    seeds: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Route the arrivals of the scenario, one environment each, with the share and price that suit it best."""
    toll = tolls(scenario)
    share, price = search(scenario, toll, min(len(arrivals[0]), _SEARCH_REQUESTS))
    count = len(arrivals)
    return _run(scenario.fleet, arrivals, seeds, np.full(count, share), np.full(count, price) * toll[:, None], progress)


def search(scenario: Scenario, toll: FloatArray, requests: int) -> tuple[float, float]:
    """Share and price of the least mean latency, all of the grid played side by side on equal arrivals."""
    grid = list(itertools.product(SHARES, PRICES if toll.any() else PRICES[:1]))
    seeds = [SEARCH_SEED + k for k in range(_SEARCH_SEEDS)]
    arrivals = [scenario.arrivals(seed, requests) for seed in seeds]
    shares, prices = np.repeat(np.array(grid), len(seeds), axis=0).T
    every = len(grid)
    result = _run(scenario.fleet, arrivals * every, seeds * every, shares, prices * toll[:, None])
    means_s = measure(result).latency.mean_s.reshape(every, len(seeds)).mean(axis=1)
    return grid[int(np.argmin(np.nan_to_num(means_s, nan=np.inf)))]


def tolls(scenario: Scenario) -> FloatArray:
    """Requests that a device second of each worker delays beyond the one that takes it, `(n,)`."""
    fleet, workload = scenario.fleet, scenario.workload
    if workload.clients:
        return np.zeros(len(fleet.workers))
    demands = workload.demand(fleet)
    # Device seconds of a mean request in its best batch, `(n, m)`; absent workers count as if they were there.
    needs_s = np.full((len(fleet.workers), len(fleet.models)), np.inf)
    for w, worker in enumerate(fleet.workers):
        for m, model in enumerate(fleet.models):
            if demands[m].share and worker.holds(model.name):
                needs_s[w, m] = seconds_of(model, worker, demands[m])[0] / sharing_gain(worker, fleet)
    served = np.isfinite(needs_s).any(axis=0)
    rates = workload.rate_per_s * np.array([demand.share for demand in demands])[served]
    used = np.minimum(_best_split(needs_s[:, served], rates), _FULL)
    found: FloatArray = used / np.square(1 - used)
    return found


def _best_split(needs_s: FloatArray, rates: FloatArray) -> FloatArray:
    """Utilisation of each worker where the requests of each model are split so that the fewest are in the system."""
    work = np.where(np.isfinite(needs_s), needs_s, 0.0) * rates
    split = 1 / needs_s
    split /= split.sum(axis=0)
    models = np.arange(len(rates))
    for step in range(_STEPS):
        used = (split * work).sum(axis=1)
        cheapest = np.argmin(needs_s / np.square(1 - np.minimum(used, _FULL))[:, None], axis=0)
        towards = 1 / (step + 2)
        split *= 1 - towards
        split[cheapest, models] += towards
    found: FloatArray = (split * work).sum(axis=1)
    return found


def _run(
    fleet: FleetSpec,
    arrivals: Sequence[Arrivals],
    seeds: Sequence[int],
    share: FloatArray,
    toll: FloatArray,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Each environment with a share of its own, `(e,)`, and tolls of its own, `(n, e)`."""
    batch = Batch([fleet] * len(arrivals), arrivals, seeds)
    sticky = batch.sticky(_PLACER)
    waiting = batch.start()
    while waiting:
        if progress is not None:
            progress(waiting)
        seen = batch.view()
        view = batch.true_view()
        added_s = np.maximum(view.completion_s - view.backlog_s, 0.0)
        shares = least(view.completion_s + added_s * (share[:, None] * view.pending + toll.T), view.eligible)
        if sticky:
            shares = np.where(batch.placed[:, None], batch.sticky_answers(seen), shares)
        waiting = batch.step(batch.draw(shares))
    return batch.result()
