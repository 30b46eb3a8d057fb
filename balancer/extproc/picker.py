"""From a call to an answer: asks the router, and knows which calls are no inference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from balancer.bounds import OutOfBoundsError
from balancer.discovery.workers import WorkerSpec
from balancer.extproc import responses
from balancer.extproc.holding import Holding, longest_answer_s
from balancer.extproc.kserve import Call, HeaderNames, Kind, Objectives
from balancer.extproc.versions import COMPRESSED, NO_BODY, path_with_version, pinned_version
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.split import Splits, VersionDraw
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from policies.base import Request

PER_SERVER = (
    "this call changes one server and not the fleet, so it is not balanced; who operates the balancer may allow it "
    "(fleet.control.callers), or send it to each Triton server itself"
)
_FAILED = "the balancer failed at this request; its log says why"


class Addresses:
    """Names of the workers that discovery lists to addresses and back, for gateways that know only addresses."""

    def __init__(self, workers: Sequence[WorkerSpec] = ()) -> None:
        self._grpc = {worker.name: worker.grpc_endpoint for worker in workers}
        self._http = {worker.name: worker.http_endpoint for worker in workers}
        self._names = {endpoint: name for table in (self._grpc, self._http) for name, endpoint in table.items()}
        self._at: dict[str, list[str]] = {}
        for worker in workers:
            self._at.setdefault(worker.address, []).append(worker.name)

    def of(self, names: Iterable[str], grpc: bool, within: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """`address:port` of each worker that is listed, in order; as `within` names them, where there is one."""
        table = within if within is not None else self._grpc if grpc else self._http
        return tuple(table[name] for name in names if name in table)

    def name(self, endpoint: str) -> str:
        """The worker at `address:port`, empty if none is listed there."""
        return self._names.get(endpoint, "")

    def within(self, endpoints: Iterable[str], grpc: bool) -> dict[str, str]:
        """The workers that a gateway allows, each with the endpoint by which it does.

        Args:
            endpoints: `address:port` of either protocol, or an address alone, which allows all workers there.
            grpc: The request's protocol, whose port is taken where both are allowed, or none is named.
        """
        own = self._grpc if grpc else self._http
        allowed: dict[str, str] = {}
        for endpoint in endpoints:
            name = self._names.get(endpoint)
            if name is not None:
                allowed[name] = own[name] if allowed.get(name) == own[name] else endpoint
            for name in self._at.get(endpoint.strip("[]"), ()):
                allowed[name] = own[name]
        return allowed


@dataclass(frozen=True, slots=True)
class Pick:
    """The answer to one call: what to send to the gateway, and what was decided, if anything was."""

    answer: bytes
    decision: Decision | None = None
    error: RoutingError | None = None
    draw: VersionDraw | None = None
    """By which the request gets a version; None: by none."""
    version: str = ""
    """That the request gets; empty: it named one, or gets Triton's choice."""


Allowed = Mapping[str, str] | None
"""Workers that a gateway allows, each with its endpoint; None: all."""


@dataclass(frozen=True, slots=True)
class Later:
    call: Call
    allowed: Allowed
    outcome: asyncio.Future[Decision | RoutingError]
    longest_answer_s: float
    """How long Envoy is asked to wait."""
    draw: VersionDraw | None = None
    version: str = ""


class Picker:
    """Turns calls into answers. `addresses`, and `names` and `objectives` of `read_call`, are replaced at any time."""

    def __init__(
        self, router: AnyRouter, clock: Callable[[], float], process: str = "0", run: str = "0", for_logs: bool = False
    ) -> None:
        """`process` and `run` as in `responses.decision`; `for_logs`: answers name model and policy, which
        Envoy writes to its audit log and traces."""
        self.router = router
        self.addresses = Addresses()
        self.names = HeaderNames()
        self.objectives: Objectives = {}
        self.fallbacks_for_all = False
        self.holding = Holding(router, clock)
        self.splits = Splits()
        """By which requests that name no version may get one."""
        self._clock = clock
        self._process = process
        self._run = run
        self._for_logs = for_logs
        self._refused = responses.decision(process, run, None)

    def pick(self, call: Call, subset: Collection[str] | None = None, own: bool = False, bodies: bool = True) -> Pick:
        """Decide for one call.

        Args:
            call: The request.
            subset: The endpoints (`address:port`, or an address for each worker there) that the gateway allows; None:
                all.
            own: Our own Envoy asks. It goes by the metadata alone, as a header more could make a request too large that
                was not, and takes fallbacks; others get them where `fallbacks_for_all` says so.
            bodies: The gateway hands over the request's body, or can write into it itself.
        """
        if call.kind is Kind.PER_SERVER:
            return Pick(responses.immediate(*responses.UNSUPPORTED_CODES, PER_SERVER, call.grpc) + self._refused)
        allowed = None if subset is None else self.addresses.within(subset, call.grpc)
        call, draw, version = self._of_a_version(call, bodies)
        try:
            decision = self._route(call, None if allowed is None else frozenset(allowed))
        except RoutingError as error:
            return self._turned_away(call, error, draw)
        return self._picked(call, decision, allowed, own, draw, version)

    def holds(self, call: Call) -> bool:
        """Whether the call waits until a worker has room."""
        may_wait = call.kind is Kind.INFERENCE or call.kind is Kind.STREAM
        return may_wait and self.holding.waiting.holds(call.request)

    def hold(self, call: Call, subset: Collection[str] | None, size_bytes: int) -> Later:
        """Let a call of our own Envoy's wait; what comes of it is read by `later`."""
        allowed = None if subset is None else self.addresses.within(subset, call.grpc)
        call, draw, version = self._of_a_version(call, bodies=True)
        try:
            workers = None if allowed is None else frozenset(allowed)
            outcome = self.holding.ask(call.request, workers, size_bytes)
        except RoutingError as error:
            outcome = asyncio.get_running_loop().create_future()
            outcome.set_result(error)
        return Later(call, allowed, outcome, longest_answer_s(self.holding.waiting.settings.max_s), draw, version)

    def later(self, waited: Later) -> Pick:
        """The answer to who waited, once its outcome is there."""
        outcome = waited.outcome.result()
        if isinstance(outcome, RoutingError):
            return self._turned_away(waited.call, outcome, waited.draw)
        return self._picked(waited.call, outcome, waited.allowed, True, waited.draw, waited.version)

    def _of_a_version(self, call: Call, bodies: bool) -> tuple[Call, VersionDraw | None, str]:
        """The same for the version that it gets, where it names none and its model is split or pinned."""
        request = call.request
        if call.kind is not Kind.INFERENCE or request.version:
            return call, None, ""
        why_not = "" if not call.grpc else COMPRESSED if call.compressed else "" if bodies else NO_BODY
        draw = self.splits.draw(request, why_not) if self.splits.of else None
        version = "" if draw is None else draw.version
        if draw is None and not why_not:
            version = pinned_version(self.router.fleet, request.model)
        if not version:
            return call, None, ""
        return replace(call, request=replace(request, version=version)), draw, version

    def _turned_away(self, call: Call, error: RoutingError, draw: VersionDraw | None) -> Pick:
        refused = responses.refusal(error, call.grpc) + self._refused
        return Pick(refused + self._log_metadata(call), error=error, draw=draw)

    def _picked(
        self, call: Call, decision: Decision, allowed: Allowed, own: bool, draw: VersionDraw | None, version: str
    ) -> Pick:
        fallbacks = decision.fallbacks if own or self.fallbacks_for_all else ()
        addresses = self.addresses.of((decision.worker, *fallbacks), call.grpc, allowed)
        answer = responses.destination(addresses, call.request.sequence, header=not own)
        answer += responses.decision(self._process, self._run, decision.number)
        if version:
            answer += self._for_a_version(call, version, own)
        return Pick(answer + self._log_metadata(call, decision.policy), decision, draw=draw, version=version)

    def _for_a_version(self, call: Call, version: str, own: bool) -> bytes:
        if own:
            return responses.version(version)
        return responses.of_any_length() if call.grpc else responses.path(path_with_version(call.path, version))

    def invalid(self, error: OutOfBoundsError, grpc: bool) -> Pick:
        return Pick(responses.immediate(*responses.INVALID_CODES, str(error), grpc) + self._refused)

    def over_limit(self, words: str, wait_s: float, grpc: bool) -> Pick:
        """Refuse a request whose tenant has sent too many."""
        return Pick(responses.immediate(*responses.CODES[Shed], words, grpc, wait_s) + self._refused)

    def unready(self, why: str, grpc: bool) -> Pick:
        return Pick(responses.refusal(NoEligibleWorker(why), grpc) + self._refused)

    def failed(self, grpc: bool) -> Pick:
        """Refuse a request that an internal error kept from being decided."""
        return Pick(responses.immediate(*responses.INTERNAL_CODES, _FAILED, grpc) + self._refused)

    def _log_metadata(self, call: Call, policy: str = "") -> bytes:
        return responses.for_logs(call.request.model, policy) if self._for_logs else b""

    def _route(self, call: Call, allowed: Collection[str] | None) -> Decision:
        now_s = self._clock()
        try:
            return self.router.route(call.request, now_s, allowed)
        except (UnknownModel, NoEligibleWorker):
            if call.kind is not Kind.MODEL:
                raise
        # A question about a model that nobody can serve: any server knows the answer that Triton gives to that.
        return self.router.route(Request(model=""), now_s, allowed)
