"""Clearly made-up measurements of a stack: no Triton has run."""

from __future__ import annotations

from typing import Any

import numpy as np

from balancer.config.profile_file import Profile
from tools.load.result import LoadResult

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
