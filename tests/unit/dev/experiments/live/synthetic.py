"""Clearly made-up measurements of a stack: gamma latencies, and no Triton has run."""

from typing import Any

import numpy as np

from balancer.config.profile_file import Profile
from balancer.load.result import LoadResult
from dev.experiments.live.record import Recording
from dev.experiments.live.session import Session

MODELS = ("emulated_tft", "emulated_bert_distilled", "emulated_bert_large")


def make_profile(device: str, mean_s: float) -> Profile:
    """Of a device that takes `mean_s` a row, whatever the model."""
    points = [
        {"rows": rows, "mean_s": mean_s * rows, "std_s": 0.1 * mean_s * rows, "executions": 9} for rows in (1, 16)
    ]
    models = [
        {"model": name, "version": "1", "max_batch_rows": 16, "instances": 1, "points": points} for name in MODELS
    ]
    head = {"device": device, "measured_at": "2026-01-01", "server": "triton 2.51", "concurrency": 1}
    return Profile.model_validate({**head, "models": models}, strict=False)


def easy(latency_s: Any) -> LoadResult:
    """Requests of one row to the fastest model, in turn to worker-1 and worker-0."""
    n = len(latency_s)
    zeros, ones = np.zeros(n, np.int64), np.ones(n, np.int64)
    times = np.arange(n) / 10
    return LoadResult(
        models=("emulated_tft",),
        codes=("OK",),
        workers=("worker-1", "worker-0"),
        duration_s=float(n),
        scheduled_s=times,
        started_s=times,
        latency_s=latency_s,
        deadline_s=np.full(n, np.inf),
        rows=ones,
        model=zeros,
        code=zeros,
        worker=np.arange(n, dtype=np.int64) % 2,
    )


PROFILES = {"worker-0": make_profile("A100", 0.002), "worker-1": make_profile("T4", 0.004)}
# A row takes 4 ms on worker-1, 2 ms on worker-0; the batcher waits for half a millisecond; 3 ms is on top.
EASY = easy(np.tile([0.0075, 0.0055], 20))

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
