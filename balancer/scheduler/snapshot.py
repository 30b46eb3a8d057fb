"""What the router knows, for people to read."""

import math
from typing import Any

import numpy as np

from balancer.kernel.limits_and_draw import pending_limit
from balancer.kernel.view import LiveView
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.fleet import Fleet
from policies.base import BoolArray, Request
from policies.columns import columns_of


def reasons(router: AnyRouter, request: Request, now_s: float) -> dict[str, list[str]]:
    """For each worker why it would not be picked for this request, in words; empty: it may be."""
    fleet = router.fleet
    limit = pending_limit(fleet, 0, float(request.priority))
    stale_after_s = router.settings.stale_after_s
    found: dict[str, list[str]] = {}
    view = LiveView(fleet, np.ones(len(fleet.workers), bool), fleet.column(request.model), request, now_s)
    eligible = fleet.eligible(request.model, request.version, now_s)
    for row, worker in enumerate(fleet.workers):
        why = list(fleet.objections(worker, request.model, request.version))
        age_s = view.report_age_s[row]
        if not why and not eligible[row]:
            since = "its report stream broke" if math.isinf(age_s) else f"its last report is {age_s:.1f} s old"
            why.append(f"{since} (limit {stale_after_s} s) and others are fresh")
        if view.pending[row] >= limit:
            why.append(f"{view.pending[row]:.0f} requests pending, the limit is {limit:.0f}")
        found[worker.name] = why
    return found


def silent(fleet: Fleet, now_s: float) -> BoolArray:
    """Whether reports of each worker broke off, `(n,)`: it has reported, and too long ago."""
    reported = np.array([worker.number >= 0 for worker in fleet.workers], bool)
    found: BoolArray = reported & (now_s - fleet.reported_s > fleet.settings.stale_after_s)
    return found


def ready(fleet: Fleet, now_s: float) -> BoolArray:
    """Whether each worker is, `(n,)`: by its last report, which is not old, and it is not draining."""
    up = [worker.ready and not (worker.draining or worker.stopping) for worker in fleet.workers]
    found: BoolArray = np.array(up, bool) & ~silent(fleet, now_s)
    return found


def snapshot(router: AnyRouter, now_s: float) -> list[dict[str, Any]]:
    """The fleet as policies see it, a record a worker, for people to read."""
    fleet = router.fleet
    view = LiveView(fleet, np.ones(len(fleet.workers), bool), 0, Request(""), now_s)
    numbers = {name: getattr(view, name) for name in columns_of("worker", "moment")}
    broke_off = silent(fleet, now_s)
    return [
        {
            "worker": worker.name,
            "ready": worker.ready and not bool(broke_off[row]),
            "draining": worker.draining or worker.stopping,
            "device": worker.device,
            "zone": worker.zone,
            "memory_bytes": worker.memory_bytes,
            "memory_used_bytes": worker.memory_used_bytes,
            "utilisation": worker.utilisation,
            **{name: float(column[row]) for name, column in numbers.items()},
            "models": {model: sorted(versions) for model, versions in sorted(worker.versions.items())},
            "service": {
                model: {
                    "fixed_s": float(fleet.service.fixed_s[row, column]),
                    "per_row_s": float(fleet.service.per_row_s[row, column]),
                    "max_batch_rows": int(fleet.service.max_batch_rows[row, column]),
                }
                for model, column in fleet.models.items()
                if fleet.service.weight[row, column] > 0
            },
        }
        for row, worker in enumerate(fleet.workers)
    ]
