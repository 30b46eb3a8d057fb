"""From a call to an answer: asks the router, and knows which calls are no inference; requests that wait for
capacity, while their callers wait for the answer."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from balancer.bounds import OutOfBoundsError
from balancer.discovery.workers import PortName, WorkerSpec, endpoints_by_port
from balancer.extproc import responses
from balancer.extproc.inference_bytes import COMPRESSED, NO_BODY, path_with_version, pinned_version
from balancer.extproc.kserve import Call, HeaderNames, Kind, Objectives
from balancer.extproc.names import CHAT
from balancer.extproc.prompts import TokenShares, read_request
from balancer.kernel.settings import HoldingSettings
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.split import Splits, VersionDraw
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.scheduler.fleet import ANY_MODEL
from balancer.scheduler.holding.state import batches_there
from balancer.scheduler.holding.waiting import Departure, Waiting
from policies.base import Request

_MARGIN_S = 0.2
_MOST_SHOWN = 20


def longest_answer_s(held_s: float) -> float:
    return held_s + _MARGIN_S


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


class HoldingListener(Protocol):
    def held(self, request: Request, seconds: float, how: str) -> None:
        """A request waits no longer: `placed`, `refused` or `withdrawn`, after so many seconds."""

    def failed_internally(self, error: Exception) -> None: ...


class Holding:
    """The waiting room of one router, in one event loop. Whoever has the router observe something calls `soon`."""

    def __init__(self, router: AnyRouter, clock: Callable[[], float]) -> None:
        self.waiting = Waiting(router)
        self._clock = clock
        self.listener: HoldingListener | None = None
        self._futures: dict[int, asyncio.Future[Decision | RoutingError]] = {}
        self._settings: HoldingSettings | None = None
        self._dispatch_is_due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        return bool(self.waiting.settings.models)

    def ask(
        self, request: Request, subset: Collection[str] | None, size_bytes: int
    ) -> asyncio.Future[Decision | RoutingError]:
        """Hold a request; the future is done at once where a worker has capacity.

        Raises:
            RoutingError: no worker may serve it.
        """
        now_s = self._clock()
        place = self.waiting.hold(request, now_s, subset, size_bytes)
        future = self._futures[place] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: self._leave(place, request, now_s) if done.cancelled() else None)
        self.dispatch()
        return future

    def soon(self) -> None:
        """Something happened: ask again, once for all that happens now."""
        if self._futures and not self._dispatch_is_due:
            self._dispatch_is_due = True
            asyncio.get_running_loop().call_soon(self.dispatch)

    def dispatch(self) -> None:
        self._dispatch_is_due = False
        try:
            if self._settings != self.waiting.settings:
                self._take_settings()
            now_s = self._clock()
            self._settle(self.waiting.expire(now_s), now_s)
            self._settle(self.waiting.dispatch(now_s), now_s)
        except Exception as error:  # a policy of somebody else's may raise anything
            if self.listener is not None:
                self.listener.failed_internally(error)
        self._arm()

    def place_all(self) -> None:
        """Nobody waits any longer: before the process ends."""
        now_s = self._clock()
        self._settle(self.waiting.place_all(now_s), now_s)

    def explain(self, model: str, now_s: float) -> dict[str, Any]:
        """Who waits for a worker with the model, in order, and what each worker has to do; empty: nobody may wait."""
        waiting, settings = self.waiting, self.waiting.settings
        if model not in settings.models:
            return {}
        ahead = [(ahead, waiting.waiters[place]) for ahead, place in enumerate(waiting.places())]
        shown = [
            {
                "ahead": before,
                "waited_s": now_s - waiter.since_s,
                "deadline_in_s": _finite(waiter.request.deadline_s - (now_s - waiter.since_s)),
                "priority": waiter.request.priority,
                "tenant": waiter.request.tenant,
            }
            for before, waiter in ahead
            if waiter.request.model == model
        ]
        why = {"order": settings.order, "window_batches": settings.models[model].window_batches}
        router = waiting.router
        column = router.fleet.column(model)
        batches = {name: batches_there(router.fleet, row, column, now_s) for row, name in enumerate(router.fleet.names)}
        return {"held": {"count": len(shown), "first": shown[:_MOST_SHOWN], **why, "unfinished_batches": batches}}

    def _take_settings(self) -> None:
        """Whose model is not held any more waits no longer. All others wait on, by the order that is in force now."""
        now_s = self._clock()
        self._settle(self.waiting.place_all(now_s, but=self.waiting.settings.models), now_s)
        self._settings = self.waiting.settings

    def _settle(self, gone: list[Departure], now_s: float) -> None:
        for left in gone:
            future = self._futures.pop(left.place)
            if not future.done():
                future.set_result(left.outcome)
            refused = isinstance(left.outcome, RoutingError)
            self._count(left.request, now_s - left.since_s, "refused" if refused else "placed")

    def _count(self, request: Request, seconds: float, how: str) -> None:
        if self.listener is not None:
            self.listener.held(request, seconds, how)

    def _leave(self, place: int, request: Request, since_s: float) -> None:
        """Whoever asked is gone. Callbacks come later: the place may be another's by now."""
        future = self._futures.get(place)
        if future is not None and future.cancelled():
            del self._futures[place]
            self.waiting.withdraw(place)
            self._count(request, self._clock() - since_s, "withdrawn")

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._futures:
            delay_s = max(self.waiting.due_s - self._clock(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.dispatch)


PER_SERVER = (
    "this call changes one server and not the fleet, so it is not balanced; who operates the balancer may allow it "
    "(fleet.control.callers), or send it to each Triton server itself"
)
_FAILED = "the balancer failed at this request; its log says why"


class Addresses:
    """Names of the workers that discovery lists to addresses and back, for gateways that know only addresses."""

    def __init__(self, workers: Sequence[WorkerSpec] = ()) -> None:
        self._endpoints = endpoints_by_port(workers)
        self._at: dict[str, list[str]] = {}
        for worker in workers:
            self._at.setdefault(worker.address, []).append(worker.name)
        self._names = {endpoint: name for table in self._endpoints.values() for name, endpoint in table.items()}
        self._some = {port: frozenset(table) for port, table in self._endpoints.items() if len(table) < len(workers)}

    def of(self, names: Iterable[str], port: PortName, within: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """`address:port` of each worker that is listed, in order; as `within` names them, where there is one."""
        table = within if within is not None else self._endpoints[port]
        return tuple(table[name] for name in names if name in table)

    def name(self, endpoint: str) -> str:
        """The worker at `address:port`, empty if none is listed there."""
        return self._names.get(endpoint, "")

    def that_have(self, port: PortName) -> frozenset[str] | None:
        """The workers with such a port; None: all are."""
        return self._some.get(port)

    def within(self, endpoints: Iterable[str], port: PortName) -> dict[str, str]:
        """The workers that a gateway allows, each with the endpoint by which it does.

        Args:
            endpoints: `address:port` of any protocol, or an address alone, which allows all workers there.
            port: The request's, which is taken where several are allowed, or none is named.
        """
        own = self._endpoints[port]
        allowed: dict[str, str] = {}
        for endpoint in endpoints:
            name = self._names.get(endpoint)
            if name in own:
                allowed[name] = own[name] if allowed.get(name) == own[name] else endpoint
            for name in self._at.get(endpoint.strip("[]"), ()):
                if name in own:
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
    draw: VersionDraw | None = None
    version: str = ""


class Picker:
    """Turns calls into answers. `addresses`, `translated`, and how requests are read are replaced at any time."""

    def __init__(
        self, router: AnyRouter, clock: Callable[[], float], process: str = "0", run: str = "0", for_logs: bool = False
    ) -> None:
        """`process` and `run` as in `responses.decision`; `for_logs`: answers name model and policy, which
        Envoy writes to its audit log and traces."""
        self.router = router
        self.addresses = Addresses()
        self.names = HeaderNames()
        self.objectives: Objectives = {}
        self.translated: frozenset[str] = frozenset()
        """Models of Tritons for which the proxy translates OpenAI's requests."""
        self.fallbacks_for_all = False
        self.holding = Holding(router, clock)
        self.splits = Splits()
        self.shares = TokenShares()
        self.tenant_of_user = False
        """As `read_request` takes it."""
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
            return Pick(responses.immediate(*responses.UNSUPPORTED_CODES, PER_SERVER, call.port) + self._refused)
        allowed = None if subset is None else self.addresses.within(subset, call.port)
        call, draw, version = self._of_a_version(call, bodies)
        try:
            decision = self._route(call, self._among(call, allowed))
        except RoutingError as error:
            return self._turned_away(call, error, draw)
        return self._picked(call, decision, allowed, own, draw, version)

    def holds(self, call: Call) -> bool:
        may_wait = call.kind is Kind.INFERENCE or call.kind is Kind.STREAM
        return may_wait and self.holding.waiting.holds(call.request)

    def hold(self, call: Call, subset: Collection[str] | None, size_bytes: int) -> Later:
        """Let a call of our own Envoy's wait; what comes of it is read by `later`."""
        allowed = None if subset is None else self.addresses.within(subset, call.port)
        call, draw, version = self._of_a_version(call, bodies=True)
        try:
            outcome = self.holding.ask(call.request, self._among(call, allowed), size_bytes)
        except RoutingError as error:
            outcome = asyncio.get_running_loop().create_future()
            outcome.set_result(error)
        return Later(call, allowed, outcome, longest_answer_s(self.holding.waiting.settings.max_s), draw, version)

    def later(self, waited: Later) -> Pick:
        outcome = waited.outcome.result()
        if isinstance(outcome, RoutingError):
            return self._turned_away(waited.call, outcome, waited.draw)
        return self._picked(waited.call, outcome, waited.allowed, True, waited.draw, waited.version)

    def that_have(self, port: PortName) -> frozenset[str] | None:
        """As `Addresses.that_have`, whatever these are now."""
        return self.addresses.that_have(port)

    def _among(self, call: Call, allowed: Allowed) -> frozenset[str] | None:
        return self.that_have(call.port) if allowed is None else frozenset(allowed)

    def _of_a_version(self, call: Call, bodies: bool) -> tuple[Call, VersionDraw | None, str]:
        """The same for the version that it gets, where it names none and its model is split or pinned."""
        request = call.request
        if call.kind is not Kind.INFERENCE or request.version or call.openai:
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
        refused = responses.refusal(error, call.port) + self._refused
        return Pick(refused + self._log_metadata(call), error=error, draw=draw)

    def _picked(
        self, call: Call, decision: Decision, allowed: Allowed, own: bool, draw: VersionDraw | None, version: str
    ) -> Pick:
        fallbacks = decision.fallbacks if own or self.fallbacks_for_all else ()
        addresses = self.addresses.of((decision.worker, *fallbacks), call.port, allowed)
        answer = responses.destination(addresses, call.request.sequence, header=not own)
        answer += responses.decision(self._process, self._run, decision.number)
        if version:
            answer += self._for_a_version(call, version, own)
        return Pick(answer + self._log_metadata(call, decision.policy), decision, draw=draw, version=version)

    def _for_a_version(self, call: Call, version: str, own: bool) -> bytes:
        if own:
            return responses.version(version)
        return responses.of_any_length() if call.grpc else responses.path(path_with_version(call.path, version))

    def read_prompt(self, headers: Mapping[str, str], body: bytes) -> Request:
        """A request of OpenAI's API for a completion, as a pick would understand it; OutOfBoundsError: it is none."""
        return self.read_body({**headers, ":path": CHAT}, body).request

    def read_body(self, headers: Mapping[str, str], body: bytes) -> Call:
        """As `read_request`."""
        return read_request(headers, body, self.names, self.shares, self.tenant_of_user)

    def openai_models(self) -> list[str]:
        """That OpenAI's clients may ask for now."""
        of_tritons = self.translated.intersection(self._models_of("http"))
        return sorted(of_tritons.union(self._models_of("openai")))

    def _models_of(self, port: PortName) -> Iterator[str]:
        """That some worker with such a port serves now."""
        fleet, names = self.router.fleet, self.that_have(port)
        rows = [row for row, name in enumerate(fleet.names) if names is None or name in names]
        named = [model for model in fleet.models if model not in ("", ANY_MODEL)]
        return (model for model in named if fleet.servable(model, "")[rows].any())

    def invalid(self, error: OutOfBoundsError, port: PortName) -> Pick:
        return Pick(responses.immediate(*responses.INVALID_CODES, str(error), port) + self._refused)

    def over_limit(self, words: str, wait_s: float, port: PortName) -> Pick:
        return Pick(responses.immediate(*responses.CODES[Shed], words, port, wait_s) + self._refused)

    def unready(self, why: str, port: PortName) -> Pick:
        return Pick(responses.refusal(NoEligibleWorker(why), port) + self._refused)

    def failed(self, port: PortName) -> Pick:
        return Pick(responses.immediate(*responses.INTERNAL_CODES, _FAILED, port) + self._refused)

    def _log_metadata(self, call: Call, policy: str = "") -> bytes:
        # What asks for OpenAI's API does not say in its path which model it is for.
        return responses.for_logs(call.request.model, policy) if self._for_logs or call.openai else b""

    def _route(self, call: Call, allowed: Collection[str] | None) -> Decision:
        now_s = self._clock()
        try:
            return self.router.route(call.request, now_s, allowed)
        except (UnknownModel, NoEligibleWorker):
            if call.kind is not Kind.MODEL:
                raise
        # A question about a model that nobody can serve: any server knows the answer that Triton gives to that.
        return self.router.route(Request(model=""), now_s, allowed)
