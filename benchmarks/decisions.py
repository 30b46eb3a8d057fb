"""How long a decision takes: the policy alone, with the columns it reads, and the whole as production runs it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.core.events import Finished, ModelReport, Report, WorkerAdded
from balancer.core.router import Router
from benchmarks.decision_time import WORKER_COUNTS, measure_policies
from benchmarks.results import Aim, Section, Table
from policies import BUILTIN
from policies.base import Policy, Request

MODELS = ("model_0", "model_1", "model_2")
_IN_FLIGHT_PER_WORKER = 3
_REQUEST_EVERY_S = 0.001
_AIMS_US = {64: 40.0, 1000: 150.0}
"""By workers, for the slowest policy that is not trained, on given columns."""
_TRAINED_AIMS_US = {16: 60.0, 64: 120.0, 1000: 600.0}
"""By workers, for the policies that are trained, the columns of the view included."""


def fleet_router(policy: Policy, workers: int) -> Router:
    """A router with a busy fleet of unequal workers, all of which have reported three models."""
    router = Router(policy)
    rng = np.random.default_rng(workers)
    for number in range(workers):
        router.observe(WorkerAdded(f"worker-{number}", weight=float(rng.choice([1.0, 2.0, 4.0]))), 0.0)
    for number in range(workers):
        router.observe(_report(number, rng), 0.0)
    return router


def _report(worker: int, rng: np.random.Generator) -> Report:
    models = tuple(
        ModelReport(
            model=model,
            version="1",
            ready=True,
            pending=float(rng.integers(0, 8)),
            executing=1.0,
            max_batch_rows=8,
            batches=((1, 50, 50 * 0.004 * float(rng.uniform(0.5, 2))), (4, 50, 50 * 0.009)),
        )
        for model in MODELS
    )
    return Report(worker=f"worker-{worker}", incarnation=1, number=1, ready=True, models=models, balancers=2)


def measure_seeing(policy: Policy, workers: int, decisions: int) -> dict[str, Any]:
    """Time `policy.probabilities` on what the router shows it, so that the columns it reads are computed within."""
    router = fleet_router(policy, workers)
    for number in range(_IN_FLIGHT_PER_WORKER * workers):
        router.route(Request(model=MODELS[number % 3]), 0.0)
    taken_ns = np.empty(decisions)
    for number in range(-decisions // 10, decisions):
        request = Request(model=MODELS[number % 3], rows=1 + number % 4, number=number % decisions, deadline_s=0.1)
        view = router.view(request, 0.001)
        begun_ns = time.thread_time_ns()
        policy.probabilities(request, view)
        ended_ns = time.thread_time_ns()
        if number >= 0:
            taken_ns[number] = ended_ns - begun_ns
    return _row(policy, workers, taken_ns)


def measure_whole(policy: Policy, workers: int, decisions: int) -> dict[str, Any]:
    """Time `Router.route` and the taking in of one outcome, with three requests in flight at each worker.

    Estimators and accounting are in it; reading the request and writing the answer are not. It is CPU time, so that
    what else the machine does is no part of it.
    """
    router = fleet_router(policy, workers)
    # Reports come all the time in production; here time stands nearly still instead, so that none gets stale.
    step_s = min(_REQUEST_EVERY_S, router.settings.stale_after_s / (4 * decisions))
    now_s = 0.0
    under_way = deque(
        router.route(Request(model=MODELS[number % 3]), now_s) for number in range(_IN_FLIGHT_PER_WORKER * workers)
    )
    taken_ns = np.empty(decisions)
    for number in range(-decisions // 10, decisions):  # what comes before 0 warms up
        request = Request(model=MODELS[number % 3], rows=1 + number % 4)
        now_s += step_s
        begun_ns = time.thread_time_ns()
        decision = router.route(request, now_s)
        ended = under_way.popleft()
        router.observe(Finished(ended.number, ended.worker, 0.005, True), now_s)
        if number >= 0:
            taken_ns[number] = time.thread_time_ns() - begun_ns
        under_way.append(decision)
    if router.failures:
        raise RuntimeError(f"policy {policy.name} failed: {router.last_failure}")
    return _row(policy, workers, taken_ns)


def _row(policy: Policy, workers: int, taken_ns: npt.NDArray[np.float64]) -> dict[str, Any]:
    p50_us, p99_us = np.percentile(taken_ns, [50, 99]) / 1000.0
    return {"policy": policy.name, "workers": workers, "p50_us": float(p50_us), "p99_us": float(p99_us)}


def measure(decisions: int = 2000) -> Section:
    """Every policy at every size of fleet; the trained ones at the sizes of their aims, too."""
    alone = measure_policies(decisions=decisions)
    whole = [measure_whole(policy(), workers, decisions) for policy in BUILTIN.values() for workers in WORKER_COUNTS]
    trained = [policy for policy in BUILTIN.values() if policy.trained]
    seeing = [measure_seeing(policy(), workers, decisions) for policy in trained for workers in _TRAINED_AIMS_US]
    plain = [row for row in alone if not BUILTIN[str(row["policy"])].trained]
    aims = [
        Aim(
            f"Slowest policy at {workers:,} workers, p50 ({slowest['policy']})",
            float(slowest["p50_us"]),
            "µs",
            limit_us,
        )
        for workers, limit_us in _AIMS_US.items()
        for slowest in [max((row for row in plain if row["workers"] == workers), key=lambda row: float(row["p50_us"]))]
    ]
    aims += [
        Aim(
            f"{row['policy']} at {row['workers']:,} workers, columns included, p50",
            float(row["p50_us"]),
            "µs",
            _TRAINED_AIMS_US[row["workers"]],
        )
        for row in seeing
    ]
    tables = [
        _table("Decision time of the policy alone, µs: p50 (p99)", alone),
        _table("The same of trained policies, with the columns that they read", seeing),
        _table("The whole decision: eligibility, estimators, policy, draw, fallbacks, and its outcome", whole),
    ]
    return Section(tables, {"policy_alone": alone, "seeing": seeing, "whole_decision": whole}, aims)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    counts = sorted({row["workers"] for row in rows})
    table = Table(title, ["policy", *(f"{workers:,} workers" for workers in counts)])
    for name in dict.fromkeys(row["policy"] for row in rows):
        cells = [f"{row['p50_us']:.1f} ({row['p99_us']:.1f})" for row in rows if row["policy"] == name]
        table.rows.append([name, *cells])
    return table
