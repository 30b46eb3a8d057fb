"""From a call to an answer: asks the router, and knows which calls are no inference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from balancer.core.bounds import OutOfBoundsError
from balancer.core.errors import NoEligibleWorker, RoutingError, UnknownModel
from balancer.core.router import Decision, Router
from balancer.core.trials.split import Lot, Splits
from balancer.gateway import responses
from balancer.gateway.addresses import Addresses
from balancer.gateway.holding import Holding, longest_answer_s
from balancer.gateway.kserve import Call, Kind
from balancer.gateway.versions import COMPRESSED, NO_BODY, path_with_version
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
    lot: Lot | None = None
    """By which the request gets a version; None: it named one, or gets Triton's choice."""


Allowed = Mapping[str, str] | None
"""Workers that a gateway allows, each with its endpoint; None: all."""


@dataclass(frozen=True, slots=True)
class Later:
    """A call that waits."""

    call: Call
    allowed: Allowed
    outcome: asyncio.Future[Decision | RoutingError]
    longest_answer_s: float
    """How long Envoy is asked to wait."""
    lot: Lot | None = None


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
        self.holding = Holding(router, clock)
        """Where requests wait."""
        self.splits = Splits()
        """By which requests that name no version may get one."""
        self._clock = clock
        self._process = process
        self._run = run
        self._told = told
        self._refused = responses.decision(process, run, None)

    def pick(self, call: Call, subset: Collection[str] | None = None, own: bool = False, bodies: bool = True) -> Pick:
        """Decide for one call.

        Args:
            call: What is asked for.
            subset: The endpoints (`address:port`, or an address for each worker there) that the gateway allows; None:
                all.
            own: Our own Envoy asks. It goes by the metadata alone, as a header more could make a request too large that
                was not, and takes fallbacks; others get them where `fallbacks_for_all` says so.
            bodies: The gateway hands over the request's body, or can write into it itself.
        """
        if call.kind is Kind.PER_SERVER:
            return Pick(responses.immediate(*responses.UNSUPPORTED_CODES, PER_SERVER, call.grpc) + self._refused)
        allowed = None if subset is None else self.addresses.within(subset, call.grpc)
        call, lot = self._of_a_version(call, bodies)
        try:
            decision = self._route(call, None if allowed is None else frozenset(allowed))
        except RoutingError as error:
            return self._turned_away(call, error, lot)
        return self._picked(call, decision, allowed, own, lot)

    def holds(self, call: Call) -> bool:
        """Whether the call waits until a worker has room."""
        may_wait = call.kind is Kind.INFERENCE or call.kind is Kind.STREAM
        return may_wait and self.holding.waiting.holds(call.request)

    def hold(self, call: Call, subset: Collection[str] | None, size_bytes: int) -> Later:
        """Let a call of our own Envoy's wait; what comes of it is read by `later`."""
        allowed = None if subset is None else self.addresses.within(subset, call.grpc)
        call, lot = self._of_a_version(call, bodies=True)
        try:
            workers = None if allowed is None else frozenset(allowed)
            outcome = self.holding.ask(call.request, workers, size_bytes)
        except RoutingError as error:
            outcome = asyncio.get_running_loop().create_future()
            outcome.set_result(error)
        return Later(call, allowed, outcome, longest_answer_s(self.holding.waiting.settings.max_s), lot)

    def later(self, waited: Later) -> Pick:
        """The answer to who waited, once its outcome is there."""
        outcome = waited.outcome.result()
        if isinstance(outcome, RoutingError):
            return self._turned_away(waited.call, outcome, waited.lot)
        return self._picked(waited.call, outcome, waited.allowed, True, waited.lot)

    def _of_a_version(self, call: Call, bodies: bool) -> tuple[Call, Lot | None]:
        """The same for one of two versions, where its model is split and it names none."""
        if call.kind is not Kind.INFERENCE or not self.splits.of:
            return call, None
        why_not = "" if not call.grpc else COMPRESSED if call.compressed else "" if bodies else NO_BODY
        lot = self.splits.draw(call.request, why_not)
        if lot is None:
            return call, None
        return replace(call, request=replace(call.request, version=lot.version)), lot

    def _turned_away(self, call: Call, error: RoutingError, lot: Lot | None) -> Pick:
        refused = responses.refusal(error, call.grpc) + self._refused
        return Pick(refused + self._tell(call), error=error, lot=lot)

    def _picked(self, call: Call, decision: Decision, allowed: Allowed, own: bool, lot: Lot | None) -> Pick:
        fallbacks = decision.fallbacks if own or self.fallbacks_for_all else ()
        addresses = self.addresses.of((decision.worker, *fallbacks), call.grpc, allowed)
        answer = responses.destination(addresses, call.request.sequence, header=not own)
        answer += responses.decision(self._process, self._run, decision.number)
        if lot is not None:
            answer += self._for_a_version(call, lot.version, own)
        return Pick(answer + self._tell(call, decision.policy), decision, lot=lot)

    def _for_a_version(self, call: Call, version: str, own: bool) -> bytes:
        """What the gateway is told of it before the body comes."""
        if own:
            return responses.version(version)
        return responses.of_any_length() if call.grpc else responses.path(path_with_version(call.path, version))

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
