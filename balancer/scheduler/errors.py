"""Why a request gets no worker. Front ends map each to their protocol's codes, once."""

from typing import NamedTuple

from balancer.scheduler.fleet import Fleet
from balancer.scheduler.worker import latest
from policies.base import Policy, Request


class RoutingError(Exception):
    """No worker for this request; the message is for the client."""


class UnknownModel(RoutingError):
    """No worker has, and no table names, the model or the version asked for."""


class NoEligibleWorker(RoutingError):
    """The model is known, but no worker may serve this request now."""


class Shed(RoutingError):
    """Workers are there, but limits or the policy turn the request away."""


class RefusalText(NamedTuple):
    """A refusal; what decides within Envoy is compiled with these."""

    error: type[RoutingError]
    text: str

    def of(self, **values: object) -> RoutingError:
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
    words = UNKNOWN_VERSION if request.version else UNKNOWN
    return words.of(model=request.model, version=request.version)


def nobody(fleet: Fleet, request: Request) -> RoutingError:
    """Nobody is eligible: the version is unknown to all, or the workers are not there just now."""
    loaded = [worker.versions[request.model] for worker in fleet.workers if request.model in worker.versions]
    if request.version and loaded and not any(request.version in versions for versions in loaded):
        return unknown(request)
    row = fleet.settings.models.get(request.model)
    permitted = () if row is None or request.version else row.versions
    some_have_one = any(not versions.isdisjoint(permitted) for versions in loaded)
    if some_have_one and {latest(versions) for versions in loaded}.isdisjoint(permitted):
        return NOT_LATEST.of(model=request.model)
    return NOBODY.of(model=request.model)


def shed(request: Request, policy: Policy) -> RoutingError:
    return SHED.of(policy=policy.name, model=request.model)
