"""Made-up runs: all requests of a seed take equally long, so mean and p99 are what a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from support.results import make_result

from experiments.held_out.plan import BASELINE, CLAIRVOYANT, WEIGHTED, Judged, bare
from experiments.held_out.runs import Watch
from simulator.scenario import Scenario
from simulator.scoreboard.compare import Board
from simulator.scoreboard.metrics import Metrics, measure
from simulator.spec import Cache, FleetSpec, ModelSpec, ServiceTime, WorkerSpec
from simulator.workload.workload import ModelTraffic, Workload

SUBJECT = "learned"


def make_scenario(name: str = "unlike", speeds: Sequence[float] = (1.0, 3.0), keys: bool = False) -> Scenario:
    fleet = FleetSpec(
        models=(ModelSpec("m", {"*": ServiceTime((1,), (0.01,))}),),
        workers=tuple(WorkerSpec(f"w{i}", speed=speed) for i, speed in enumerate(speeds)),
        cache=Cache(entries=10, saving=0.5) if keys else Cache(),
    )
    return Scenario(name, "", "held-out", fleet, Workload(100.0, (ModelTraffic("m"),)))


def metrics(by_seed: Sequence[float], ok: float = 1.0) -> Metrics:
    """Of latencies in seconds, one a seed; all but a share `ok` of the requests end in an error."""
    latency_s = np.repeat(np.asarray(by_seed, float)[:, None], 200, axis=1)
    status = np.zeros(latency_s.shape, np.int8)
    status[:, round(200 * ok) :] = 1
    return measure(make_result(latency_s, status=status), 0.0)


def make_judged(latencies: Mapping[str, Sequence[float]], scenario: Scenario | None = None) -> Judged:
    """Of latencies by policy and seed; without its guard the subject is as with it, `wlpr` as the baseline."""
    scenario = scenario or make_scenario()
    known = dict(latencies)
    known.setdefault(WEIGHTED, known[BASELINE])
    known.setdefault(CLAIRVOYANT, known[BASELINE])
    known.setdefault(bare(SUBJECT), known[SUBJECT])
    policies = {name: metrics(each) for name, each in known.items()}
    seeds = len(known[BASELINE])
    return Judged(
        board=Board(
            scenario=scenario,
            seeds=tuple(range(seeds)),
            requests=200,
            load=0.5,
            policies={name: each for name, each in policies.items() if name != CLAIRVOYANT},
            exact={},
            references={CLAIRVOYANT: policies[CLAIRVOYANT]},
            bound=None,
            sweep={},
            timelines={},
        ),
        watches={SUBJECT: make_watch(seeds)},
        end_s=10.0,
    )


def make_watch(seeds: int) -> Watch:
    """In the first seed the guard fell twice, for another reason each time."""
    falls = np.zeros(seeds, np.int64)
    falls[0] = 2
    return Watch(
        by_baseline=np.full(seeds, 0.25), fallen=np.full(seeds, 0.2), falls=falls, reasons=Counter(range=1, late=1)
    )


def with_answers(judged: Judged, policy: str, ok: float) -> Judged:
    """The same, of which the policy answers only a share."""
    changed = metrics(judged.board.policies[policy].latency.mean_s.tolist(), ok)
    return replace(judged, board=replace(judged.board, policies=dict(judged.board.policies) | {policy: changed}))
