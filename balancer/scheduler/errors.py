"""Why a request gets no worker. Front ends map each to their protocol's codes, once."""


class RoutingError(Exception):
    """No worker for this request; the message is for the client."""


class UnknownModel(RoutingError):
    """No worker has, and no table names, the model or the version asked for."""


class NoEligibleWorker(RoutingError):
    """The model is known, but no worker may serve this request now."""


class Shed(RoutingError):
    """Workers are there, but limits or the policy turn the request away."""
