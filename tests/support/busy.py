"""Reports of unequal, busy workers."""

from __future__ import annotations

from balancer.scheduler.events import ModelReport, Report

MODELS = ("a", "b", "c")


def busy_report(worker: int, k: int, *, executing: float = 0.0, everywhere: bool = True) -> Report:
    """The report numbered `k` of worker `w{worker}`; `everywhere`: whether each has all models ready."""
    models = tuple(
        ModelReport(
            model,
            "1",
            ready=everywhere or model != "c" or worker % 2 == 0,
            pending=float((worker + k) % 5),
            executing=executing,
            succeeded=30 * k,
            max_batch_rows=4,
            instances=1 + worker % 2,
            batches=((1, 20 * k, 0.02 * k * (1 + worker % 7)), (4, 5 * k, 0.03 * k)),
        )
        for model in MODELS
    )
    return Report(f"w{worker}", 1, k, True, models=models, balancers=1 + worker % 3)
