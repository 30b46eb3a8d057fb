"""How long a decision takes as production runs it: by the compiled kernel, and by Python where none is there."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.core.events import Finished, ModelReport, Report, WorkerAdded, WorkersAdded
from balancer.core.kernel.plain import Kernel
from balancer.core.router import Router
from balancer.native.library import Compiled, Library
from benchmarks.results import Aim, Section, Table
from policies import BUILTIN
from policies.base import Policy, Request

MODELS = ("model_0", "model_1", "model_2")
_IN_FLIGHT_PER_WORKER = 3
_MOST_IN_PYTHON = 64
"""Workers: Python takes minutes to be told of a thousand."""
_REQUEST_EVERY_S = 0.001
WORKER_COUNTS = (8, 64, 256, 1000)
_AIMS_US = {64: 8.0, 1000: 40.0}
"""By workers, for the slowest policy that is not trained."""
_TRAINED_AIMS_US = {64: 20.0, 1000: 150.0}
"""By workers, for the policies that are trained."""


def fleet_router(policy: Policy, workers: int, kernel: Kernel) -> Router:
    """A router with a busy fleet of unequal workers, all of which have reported three models."""
    router = Router(policy, kernel=kernel)
    add_fleet(router, workers, 0.0)
    return router


def add_fleet(router: Router, workers: int, now_s: float) -> None:
    """Workers of three weights, and a report of each."""
    rng = np.random.default_rng(workers)
    weights = rng.choice([1.0, 2.0, 4.0], size=workers).tolist()
    added = (WorkerAdded(f"worker-{number}", weight=weight) for number, weight in enumerate(weights))
    router.observe(WorkersAdded(tuple(added)), now_s)
    for number in range(workers):
        router.observe(_report(number, rng), now_s)


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


def measure_whole(policy: Policy, workers: int, decisions: int, kernel: Kernel) -> dict[str, Any]:
    """Time `Router.route` and the taking in of one outcome, with three requests in flight at each worker.

    Estimators and accounting are in it; reading the request and writing the answer are not. It is CPU time, so that
    what else the machine does is no part of it.
    """
    router = fleet_router(policy, workers, kernel)
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
    """Every policy at every size of fleet, by the library and in Python."""
    library = Library()
    cases = [(policy(), workers) for policy in BUILTIN.values() for workers in WORKER_COUNTS]
    compiled = [measure_whole(policy, workers, decisions, Compiled(library)) for policy, workers in cases]
    few = [(policy, workers) for policy, workers in cases if workers <= _MOST_IN_PYTHON]
    plain = [measure_whole(policy, workers, decisions // 4, Kernel()) for policy, workers in few]
    aims = []
    for trained, limits_us in ((False, _AIMS_US), (True, _TRAINED_AIMS_US)):
        for workers, limit_us in limits_us.items():
            rows = [row for row in compiled if row["workers"] == workers and BUILTIN[row["policy"]].trained is trained]
            slowest = max(rows, key=lambda row: float(row["p50_us"]))
            name = f"Slowest {'trained ' if trained else ''}policy at {workers:,} workers, p50 ({slowest['policy']})"
            aims.append(Aim(name, float(slowest["p50_us"]), "µs", limit_us))
    tables = [
        _table("The whole decision: eligibility, estimators, policy, draw, fallbacks, and its outcome, µs", compiled),
        _table("The same where no compiled kernel is there, in Python", plain),
    ]
    return Section(tables, {"compiled": compiled, "python": plain}, aims)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    counts = sorted({row["workers"] for row in rows})
    table = Table(title, ["policy", *(f"{workers:,} workers" for workers in counts)])
    for name in dict.fromkeys(row["policy"] for row in rows):
        cells = [f"{row['p50_us']:.1f} ({row['p99_us']:.1f})" for row in rows if row["policy"] == name]
        table.rows.append([name, *cells])
    return table
