"""Why a request gets no worker, in words for its client."""

from __future__ import annotations

from typing import NamedTuple

from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.scheduler.fleet import Fleet
from policies.base import Policy, Request


class RefusalText(NamedTuple):
    """A refusal; what decides within Envoy is compiled with these."""

    error: type[RoutingError]
    text: str
    """Template for `str.format`."""

    def of(self, **values: object) -> RoutingError:
        """The error, with its words."""
        return self.error(self.text.format(**values))


# Triton's own words, so that clients see no difference.
UNKNOWN = RefusalText(UnknownModel, "Request for unknown model: '{model}' is not found")
UNKNOWN_VERSION = RefusalText(UnknownModel, "Request for unknown model: '{model}' version {version} is not found")
NOBODY = RefusalText(NoEligibleWorker, "no worker may serve model {model!r} now; retry later")
NOT_LATEST = RefusalText(
    NoEligibleWorker,
    "the latest version of model {model!r} may not be served, and none can be written into a stream or a compressed "
    "message; name the version",
)
FULL = RefusalText(Shed, "every worker for model {model!r} has {limit:.0f} requests pending; retry later")
LATE = RefusalText(Shed, "model {model!r} would take {best_ms:.0f} ms at best, the deadline is in {deadline_ms:.3g} ms")
SHED = RefusalText(Shed, "policy {policy} sheds: no capacity for model {model!r} now; retry later")

HELD_FULL = RefusalText(
    Shed, "{count} requests of {bytes} bytes wait for a worker already; none to model {model!r} may too"
)
HELD_LONG = RefusalText(Shed, "no worker had room for model {model!r} in {held_s:.3g} s; retry later")


def unknown(request: Request) -> RoutingError:
    """No worker has the model, or that version."""
    words = UNKNOWN_VERSION if request.version else UNKNOWN
    return words.of(model=request.model, version=request.version)


def nobody(fleet: Fleet, request: Request) -> RoutingError:
    """Nobody is eligible: the version is unknown to all, or the workers are not there just now."""
    loaded = [worker.versions[request.model] for worker in fleet.workers if request.model in worker.versions]
    if request.version and loaded and not any(request.version in versions for versions in loaded):
        return unknown(request)
    row = fleet.settings.models.get(request.model)
    if row is not None and row.versions and loaded and not request.version:
        latest = {max(versions, key=lambda version: (len(version), version), default="") for versions in loaded}
        if latest.isdisjoint(row.versions) and not all(versions.isdisjoint(row.versions) for versions in loaded):
            return NOT_LATEST.of(model=request.model)
    return NOBODY.of(model=request.model)


def full(request: Request, limit: float) -> RoutingError:
    """All workers have as many pending as `limit`."""
    return FULL.of(model=request.model, limit=limit)


def late(request: Request, best_s: float) -> RoutingError:
    """No worker would be in time."""
    return LATE.of(model=request.model, best_ms=best_s * 1000, deadline_ms=float(request.deadline_s) * 1000)


def shed(request: Request, policy: Policy) -> RoutingError:
    """The policy gives the request to nobody."""
    return SHED.of(policy=policy.name, model=request.model)
