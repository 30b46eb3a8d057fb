"""Routers with workers that have reported, for tests of the core."""

import dataclasses
from collections.abc import Sequence

from balancer.kernel.settings import Settings
from balancer.scheduler.events import ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from policies.base import Policy
from policies.least_requests import LeastRequests


def model(name: str = "m", **fields: object) -> ModelReport:
    return ModelReport(**({"model": name, "version": "1", "ready": True} | fields))  # type: ignore[arg-type]  # a test double


def report(worker: str, number: int = 1, models: Sequence[ModelReport] = (), **fields: object) -> Report:
    known: dict[str, object] = {"worker": worker, "incarnation": 1, "number": number, "ready": True}
    return Report(**(known | {"models": tuple(models) or (model(),)} | fields))  # type: ignore[arg-type]  # a test double


def make_router(
    workers: int = 3,
    policy: Policy | None = None,
    settings: Settings | None = None,
    models: Sequence[ModelReport] = (),
    seed: int = 0,
) -> Router:
    router = Router(policy or LeastRequests(), settings, seed)
    for i in range(workers):
        router.observe(WorkerAdded(f"w{i}"), 0.0)
        if any(each.batches for each in models):  # nothing is learned from a first report
            router.observe(report(f"w{i}", 0, [dataclasses.replace(each, batches=()) for each in models]), 0.0)
        router.observe(report(f"w{i}", models=models), 0.0)
    return router
