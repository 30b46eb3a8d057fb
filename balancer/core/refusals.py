"""Why a request gets no worker, in words for its client."""

from __future__ import annotations

from balancer.core.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.core.fleet import Fleet
from balancer.core.view import LiveView
from policies.base import Policy, Request


def unknown(request: Request) -> UnknownModel:
    """No worker has the model, or that version: Triton's own words, so that clients see no difference."""
    version = f" version {request.version}" if request.version else ""
    return UnknownModel(f"Request for unknown model: '{request.model}'{version} is not found")


def nobody(fleet: Fleet, request: Request) -> RoutingError:
    """Nobody is eligible: the version is unknown to all, or the workers are not there just now."""
    loaded = [worker.versions[request.model] for worker in fleet.workers if request.model in worker.versions]
    if request.version and loaded and not any(request.version in versions for versions in loaded):
        return unknown(request)
    return NoEligibleWorker(f"no worker may serve model {request.model!r} now; retry later")


def full_or_late(request: Request, view: LiveView, limit: float) -> Shed:
    """Limits leave nobody: all workers have as many pending as `limit`, or none in the view's mask would be in time."""
    if not view.mask.any():
        return Shed(f"every worker for model {request.model!r} has {limit:.0f} requests pending; retry later")
    best_s = float(view.completion_s[view.mask].min())
    return Shed(
        f"model {request.model!r} would take {best_s * 1000:.0f} ms at best, "
        f"the deadline is in {float(request.deadline_s) * 1000:.3g} ms"
    )


def shed(request: Request, policy: Policy) -> Shed:
    """The policy gives the request to nobody."""
    return Shed(f"policy {policy.name} sheds: no capacity for model {request.model!r} now; retry later")
