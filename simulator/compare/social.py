"""A reference that knows its fleet and minds others: trained for each scenario, with true knowledge.

The clairvoyant beside it is selfish: it sends each request where that one is done first. This one adds to the request's
own completion, at each worker,

    s * (share * pending + toll of the model there)

with s the device seconds that the request adds there. The first term is for those who wait already, the second for
those who will come: by tolls models part the workers among themselves, as `learned` does it with what reports tell.
`share` and all tolls are searched for by CMA-ES (Ros and Hansen 2008) for the least mean latency, on arrivals and seeds
that judge nothing.

Limits. It is a policy and no bound: one request at a time, at once, greedily, within one family of costs, as far as a
short search came, and chosen by the mean, so its p99 may be beaten. Completions are the clairvoyant's: all that is
queued goes first, though models take turns on a device. It knows nothing of faults to come.
"""

from collections.abc import Callable, Sequence

import numpy as np
from cmaes import SepCMA

from policies import BUILTIN
from policies.base import FloatArray, least
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.compare.metrics import WARM_UP_SHARE, counted_latency_s
from simulator.result import Result
from simulator.scenario import Scenario
from simulator.spec import FleetSpec

SEARCH_SEED = (1 << 31) + (1 << 21)
"""The first of those that the search plays: judged are others."""
_SEARCH_SEEDS, _SEARCH_REQUESTS = 2, 1500
_GENERATIONS, _CANDIDATES = 15, 24
_SHARE_UNIT, _TOLL_UNIT = 2.0, 4.0
_START, _DEVIATION = 0.5, 0.25
_PLACER = BUILTIN["expected_latency"]()
"""Stands for any policy that does not go by keys, where it is asked whether the router's hash places them."""


def run_social(
    scenario: Scenario,
    arrivals: Sequence[Arrivals],
    seeds: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Route the arrivals of the scenario, one environment each, by the cost that suits it best."""
    found = search(scenario, min(len(arrivals[0]), _SEARCH_REQUESTS))
    return _run(scenario.fleet, arrivals, seeds, np.tile(found, (len(arrivals), 1)), progress)


def search(scenario: Scenario, requests: int) -> FloatArray:
    """The cost of the least mean latency, `(x,)`; all candidates are played side by side on equal arrivals."""
    tolls = np.count_nonzero(_held(scenario.fleet))
    found = SepCMA(np.array([_START, *np.zeros(tolls)]), _DEVIATION, population_size=_CANDIDATES, seed=0)
    for generation in range(_GENERATIONS):
        asked = np.stack([found.ask() for _ in range(_CANDIDATES)])
        seeds = [SEARCH_SEED + _SEARCH_SEEDS * generation + k for k in range(_SEARCH_SEEDS)]
        arrivals = [scenario.arrivals(seed, requests) for seed in seeds] * _CANDIDATES
        result = _run(scenario.fleet, arrivals, seeds * _CANDIDATES, np.repeat(asked, _SEARCH_SEEDS, axis=0))
        means_s = counted_latency_s(result)[:, int(requests * WARM_UP_SHARE) :].mean(axis=1)
        costs = np.log(means_s).reshape(_CANDIDATES, _SEARCH_SEEDS).mean(axis=1)
        found.tell(list(zip(asked, costs.tolist(), strict=True)))
    best: FloatArray = found.mean
    return best


def _held(fleet: FleetSpec) -> FloatArray:
    """Whether a worker may have a model, `(m, n)`."""
    return np.array([[fleet.may_hold(worker, model.name) for worker in fleet.workers] for model in fleet.models])


def _run(
    fleet: FleetSpec,
    arrivals: Sequence[Arrivals],
    seeds: Sequence[int],
    costs: FloatArray,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Each environment with a cost of its own, `(e, x)`."""
    batch = Batch([fleet] * len(arrivals), arrivals, seeds)
    share, held = _SHARE_UNIT * np.square(costs[:, :1]), _held(fleet)
    tolls = np.zeros((len(costs), *held.shape))
    tolls[:, held] = _TOLL_UNIT * costs[:, 1:]
    tolls -= tolls.min(axis=2, keepdims=True)
    sticky, each = batch.sticky(_PLACER), np.arange(len(costs))
    waiting = batch.start()
    while waiting:
        if progress is not None:
            progress(waiting)
        seen = batch.view()
        view = batch.true_view()
        added_s = np.maximum(view.completion_s - view.backlog_s, 0.0)
        toll = tolls[each, batch.sim.pending.model]
        shares = least(view.completion_s + added_s * (share * view.pending + toll), view.eligible)
        if sticky:
            shares = np.where(batch.placed[:, None], batch.sticky_answers(seen), shares)
        waiting = batch.step(batch.draw(shares))
    return batch.result()
