"""A clearly made-up switchback: gamma latencies, not measurements."""

from __future__ import annotations

import numpy as np
from unit.experiments.live_fidelity.synthetic import EASY, PROFILES

from experiments.live_fidelity.live import Recording
from experiments.live_fidelity.session import Session
from tools.load.result import LoadResult

SESSION = Session(
    policies=("wlpr", "power_of_two", "expected_latency"),
    rounds=3,
    window_s=1.0,
    settle_s=0.5,
    pause_s=0.0,
    rate_per_s=60.0,
)
_MEAN_S = {"wlpr": 0.040, "power_of_two": 0.060, "expected_latency": 0.020}


def make_live(failed: int = 0) -> LoadResult:
    """What came back, of which the last ones failed."""
    sent, turn = SESSION.workload(), SESSION.turn_of_requests()
    count, generator = len(sent), np.random.default_rng(5)
    mean_s = np.array([_MEAN_S[each.policy] for each in SESSION.turns()])[turn]
    return LoadResult(
        models=sent.models,
        codes=("OK", "UNAVAILABLE"),
        workers=("worker-1", "worker-0"),
        duration_s=SESSION.turns()[-1].end_s,
        scheduled_s=sent.time_s,
        started_s=sent.time_s + 1e-4,
        latency_s=generator.gamma(3.0, mean_s / 3.0),
        deadline_s=sent.deadline_s,
        rows=sent.rows,
        model=sent.model,
        code=(np.arange(count) >= count - failed).astype(np.int64),
        worker=generator.integers(2, size=count),
    )


def make_recording(failed: int = 0, own: float = 0.95, slowest_swap_s: float = 0.1) -> Recording:
    """The whole of it; of the decisions in the windows of `expected_latency`, `own` were its own."""
    turns = SESSION.turns()
    return Recording(
        session=SESSION,
        profiles=PROFILES,
        easy=EASY,
        live=make_live(failed),
        swaps_s=(0.05,) * (len(turns) - 1) + (slowest_swap_s,),
        batches={"worker-0": {"emulated_tft": {4: 20}}, "worker-1": {"emulated_tft": {4: 10}}},
        weights={"worker-0": 1.333, "worker-1": 0.667},
        decided=tuple(
            {"expected_latency": 100 * own, "round_robin": 100 * (1 - own)}
            if turn.policy == "expected_latency"
            else {turn.policy: 100.0, "expected_latency": 0.0}
            for turn in turns
        ),
    )
