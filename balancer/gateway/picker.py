"""From a call to an answer: asks the router, and knows which calls are no inference."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from balancer.core.bounds import OutOfBoundsError
from balancer.core.errors import NoEligibleWorker, RoutingError, UnknownModel
from balancer.core.router import Decision, Router
from balancer.gateway import responses
from balancer.gateway.addresses import Addresses
from balancer.gateway.kserve import Call, Kind
from policies.base import Request

PER_SERVER = (
    "this call changes one server and not the fleet, so it is not balanced; send it to each Triton server itself"
)
_MISTAKE = "the balancer failed at this request; its log says why"


@dataclass(frozen=True, slots=True)
class Pick:
    """The answer to one call: what to send to the gateway, and what was decided, if anything was."""

    answer: bytes
    decision: Decision | None = None
    error: RoutingError | None = None


class Picker:
    """Turns calls into answers. `addresses` are replaced whenever discovery says so."""

    def __init__(
        self, router: Router, clock: Callable[[], float], process: str = "0", run: str = "0", told: bool = False
    ) -> None:
        """`process` and `run` as in `responses.decision`; `told`: Envoy is told model and policy, for its audit
        log and traces."""
        self.router = router
        self.addresses = Addresses()
        self.fallbacks_for_all = False
        self._clock = clock
        self._process = process
        self._run = run
        self._told = told
        self._refused = responses.decision(process, run, None)

    def pick(self, call: Call, subset: Collection[str] | None = None, own: bool = False) -> Pick:
        """Decide for one call.

        Args:
            call: What is asked for.
            subset: The endpoints (`address:port`, or an address for each worker there) that the gateway allows; None:
                all.
            own: Our own Envoy asks. It goes by the metadata alone, as a header more could make a request too large that
                was not, and takes fallbacks; others get them where `fallbacks_for_all` says so.
        """
        if call.kind is Kind.PER_SERVER:
            return Pick(responses.immediate(*responses.UNSUPPORTED_CODES, PER_SERVER, call.grpc) + self._refused)
        allowed = None if subset is None else self.addresses.within(subset, call.grpc)
        try:
            decision = self._route(call, None if allowed is None else frozenset(allowed))
        except RoutingError as error:
            refused = responses.refusal(error, call.grpc) + self._refused
            return Pick(refused + self._tell(call), error=error)
        fallbacks = decision.fallbacks if own or self.fallbacks_for_all else ()
        addresses = self.addresses.of((decision.worker, *fallbacks), call.grpc, allowed)
        answer = responses.destination(addresses, call.request.sequence, header=not own)
        answer += responses.decision(self._process, self._run, decision.number)
        return Pick(answer + self._tell(call, decision.policy), decision)

    def invalid(self, error: OutOfBoundsError, grpc: bool) -> Pick:
        """Refuse a request that is out of bounds."""
        return Pick(responses.immediate(*responses.INVALID_CODES, str(error), grpc) + self._refused)

    def unready(self, why: str, grpc: bool) -> Pick:
        """Refuse a request while no worker is known."""
        return Pick(responses.refusal(NoEligibleWorker(why), grpc) + self._refused)

    def failed(self, grpc: bool) -> Pick:
        """Refuse a request that a mistake of ours kept from being decided."""
        return Pick(responses.immediate(*responses.INTERNAL_CODES, _MISTAKE, grpc) + self._refused)

    def _tell(self, call: Call, policy: str = "") -> bytes:
        return responses.told(call.request.model, policy) if self._told else b""

    def _route(self, call: Call, allowed: Collection[str] | None) -> Decision:
        now_s = self._clock()
        try:
            return self.router.route(call.request, now_s, allowed)
        except (UnknownModel, NoEligibleWorker):
            if call.kind is not Kind.MODEL:
                raise
        # A question about a model that nobody can serve: any server knows the answer that Triton gives to that.
        return self.router.route(Request(model=""), now_s, allowed)
