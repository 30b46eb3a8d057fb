"""Requests that are held, in production: who waits, who leaves with which decision, and who is turned away.

The owner of the clock calls `dispatch` after everything that the router observed, and `expire` at `due_s`.
"""

import dataclasses
import heapq
from collections.abc import Collection, Container
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from balancer.kernel import deciding, limits_and_draw
from balancer.kernel.estimators.service import alone_s
from balancer.kernel.policy_answers import Compiler
from balancer.kernel.settings import HoldingSettings
from balancer.kernel.state import FOUND_COLUMNS, RequestFeatures
from balancer.kernel.view import LiveView
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.errors import HELD_FULL, HELD_LONG, RoutingError, nobody, shed
from balancer.scheduler.holding import wait_queue
from balancer.scheduler.holding.dispatch import dispatching
from balancer.scheduler.holding.state import (
    MOST_TENANTS,
    NOBODY,
    SHEDS,
    WAITS,
    Held,
    held_arrays,
    holding_row,
    lengths_of_held,
    model_rows,
)
from policies.base import HeldRequests, Policy, Request
from policies.hashing import mix, unit

_LAST_TENANT = MOST_TENANTS - 1
"""The number of all tenants who come when every number is taken."""
_IN_ORDER = "those who wait keep their order"


class Departure(NamedTuple):
    place: int
    outcome: Decision | RoutingError
    request: Request
    since_s: float


@dataclass(frozen=True, slots=True)
class Waiter:
    request: Request
    subset: Collection[str] | None
    size_bytes: int
    since_s: float

    def left(self, place: int, outcome: Decision | RoutingError) -> Departure:
        return Departure(place, outcome, self.request, self.since_s)


class Waiting:
    """The requests that one router holds. Off, and nothing of it runs, while no model is named in the settings."""

    def __init__(self, router: AnyRouter) -> None:
        self.router = router
        self.waiters: dict[int, Waiter] = {}
        self.size_bytes = 0
        self._settings = HoldingSettings()
        self._decision: object = None
        self._free: list[int] = []
        self._due: list[tuple[float, int, int, Waiter]] = []
        """When, entry, place and who; also of those who have left."""
        self._gone: list[Departure] = []
        """Who left beyond a bound, and was not returned yet."""
        self._tenants: dict[str, int] = {}
        self._held: Held = held_arrays({**lengths_of_held(1, False), "e": 1, "b": 1, "m": 0})

    def __len__(self) -> int:
        return len(self.waiters)

    @property
    def settings(self) -> HoldingSettings:
        return self.router.settings.holding

    def holds(self, request: Request) -> bool:
        """Whether such a request is held: by its model, and unless its key or sequence says where it goes."""
        if request.model not in self.settings.models or request.sequence:
            return False
        return request.key is None or not self.router.settings.sticky_keys

    def hold(self, request: Request, now_s: float, subset: Collection[str] | None = None, size_bytes: int = 0) -> int:
        """Hold a request; returns its place. A `dispatch` must follow, in which the last leave if there are too many.

        Raises:
            RoutingError: no worker may serve it.
        """
        self._lay_out()
        self._check_somebody(request, now_s, subset)
        settings = self.settings
        place = self._free.pop()
        waiter = self.waiters[place] = Waiter(request, subset, size_bytes, now_s)
        self.size_bytes += size_bytes
        heapq.heappush(self._due, (now_s + settings.max_s, int(self._held.entered[0, 0]), place, waiter))
        self._write(place, request)
        wait_queue.enter(self._held, 0, 0, place, self._service_s(request, now_s), now_s)
        while wait_queue.is_crowded(self._held, 0, 0) or self.size_bytes > settings.max_bytes:
            last = wait_queue.crowd_out(self._held, 0, 0)
            count, size_bytes = len(self.waiters) - 1, self.size_bytes - self.waiters[last].size_bytes
            error = HELD_FULL.of(model=self.waiters[last].request.model, count=count, bytes=size_bytes)
            self._overflow(last, error, now_s)
        return place

    def dispatch(self, now_s: float) -> list[Departure]:
        """Ask again for all that are held, in their order; returns who leaves."""
        gone = self._take_gone()
        if not self.waiters:
            return gone
        self._lay_out()
        held = self._held
        self._ask_for_urgency(now_s)
        with np.errstate(over="ignore"):  # products of 64 bits, of which the upper ones go
            count = _DISPATCH(self.router.fleet, held, self, 0, 0, 0, self.router.next_number, now_s)
        leaving = zip(held.leaves[0, :count].tolist(), held.goes_to[0, :count].tolist(), strict=True)
        return gone + [self._let_go(place, worker, now_s) for place, worker in leaving]

    @property
    def due_s(self) -> float:
        """When `expire` is to be called; infinite: nobody is held."""
        while self._due and self.waiters.get(self._due[0][2]) is not self._due[0][3]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else np.inf

    def expire(self, now_s: float) -> list[Departure]:
        while self.due_s <= now_s:
            place, waiter = heapq.heappop(self._due)[2:]
            self._take_out(place)
            self._overflow(place, HELD_LONG.of(model=waiter.request.model, held_s=now_s - waiter.since_s), now_s)
        return self._take_gone()

    def _overflow(self, place: int, error: RoutingError, now_s: float) -> None:
        """Who is out of the queue, but has no worker, is placed all the same, or turned away by this error."""
        waiter = self.waiters[place]
        outcome: Decision | RoutingError = error
        if self.settings.overflow == "place":
            outcome = self._route(waiter, now_s)
        else:
            self.router.refuse(waiter.request, error, now_s)
        self._gone.append(waiter.left(place, outcome))
        self.size_bytes -= self.waiters.pop(place).size_bytes

    def _take_gone(self) -> list[Departure]:
        """Who left beyond a bound; from now on their places are free."""
        gone, self._gone = self._gone, []
        self._free.extend(left.place for left in gone)
        return gone

    def places(self) -> list[int]:
        found: list[int] = self._held.wait_queue[0, 0, : int(self._held.length[0, 0])].tolist()
        return found

    def withdraw(self, place: int) -> None:
        if place in self.waiters:
            self._take_out(place)
            self._forget(place)

    def place_all(self, now_s: float, but: Container[str] = ()) -> list[Departure]:
        """Place all that are held, in their order, whether there is room or not; `but` those to these models."""
        gone = []
        for place in self.places():
            waiter = self.waiters[place]
            if waiter.request.model in but:
                continue
            self._take_out(place)
            gone.append(waiter.left(place, self._route(waiter, now_s)))
            self._forget(place)
        return gone

    # What a dispatch asks of its host; see `balancer.scheduler.holding.dispatch`.

    def see(self, place: int, ask: RequestFeatures, now_s: float) -> int:
        """Set the scratch's mask to who may be picked."""
        waiter, fleet = self.waiters[place], self.router.fleet
        mask = self.router.who_may(waiter.request, now_s, waiter.subset)[1]
        if not np.count_nonzero(mask):
            return NOBODY
        fleet.decision.mask[0] = mask
        count = deciding.permit(fleet, 0, 0, ask, now_s, np.zeros(FOUND_COLUMNS))
        return SHEDS if count == deciding.LATE else max(count, 0)

    def choose(self, place: int, ask: RequestFeatures, now_s: float) -> int:
        """Whom the policy in force picks of those in the scratch's mask."""
        router, policy = self.router, self._policy
        request = self._request_now(self.waiters[place], now_s, ask.number)
        view = LiveView(router.fleet, router.fleet.decision.mask[0].copy(), ask.model, request, now_s)
        if self._rather_waits(policy, request, view):
            return WAITS
        shares = router.answer_of(policy, request, view)[0].tolist()
        return limits_and_draw.draw(shares, unit(mix(router.fleet.kernel.seed ^ ask.number)))

    # How it is kept.

    @property
    def _policy(self) -> Policy:
        selector = self.router.selector
        return self.router.policy if selector is None else selector.main()[0]

    def _rather_waits(self, policy: Policy, request: Request, view: LiveView) -> bool:
        try:
            return bool(policy.holds(request, view))
        except Exception as error:  # a third party's policy may raise anything
            self.router.count_failure(policy.name, repr(error), "no request waits by it")
            return False

    def _ask_for_urgency(self, now_s: float) -> None:
        """Order the queue as the policy says, if it says anything."""
        policy, fleet, held = self._policy, self.router.fleet, self._held
        if type(policy).urgency is Policy.urgency:
            return
        places = self.places()
        left_s = held.deadline_s[0, places] - (now_s - held.since_s[0, places])
        waited_s = now_s - held.since_s[0, places]
        requests = HeldRequests(held.rows[0, places], left_s, held.priority[0, places], waited_s)
        view = LiveView(fleet, np.ones(len(fleet.workers), bool), self.router.fleet.column(""), Request(""), now_s)
        try:
            urgency = policy.urgency(requests, view)
            ranks = None if urgency is None else -np.asarray(urgency, float)
        except Exception as error:  # a third party's policy may raise anything
            self.router.count_failure(policy.name, repr(error), _IN_ORDER)
            return
        if ranks is None:
            return
        if ranks.shape != (len(places),) or np.isnan(ranks).any():
            failure = f"urgency of {len(places)} requests has shape {ranks.shape}, or is not a number"
            self.router.count_failure(policy.name, failure, _IN_ORDER)
            return
        held.rank[0, places] = ranks
        wait_queue.sort(held, 0, 0)

    def _lay_out(self) -> None:
        router, settings = self.router, self.settings
        if router.fleet.decision is self._decision and settings is self._settings:
            return
        # Places that are lent stay what they are: whoever waits knows them.
        places = 1 + max(settings.max_requests, max(self.waiters, default=-1) + 1)
        lengths = lengths_of_held(places, True) | {"e": 1, "b": 1, "m": router.fleet.queue.known_rows.shape[1]}
        before, self._held = self._held, held_arrays(lengths)
        held = self._held
        held.settings[0] = holding_row(settings)
        names = {column: name for name, column in router.fleet.models.items()}
        held.models[0] = model_rows(settings, [names.get(column, "") for column in range(lengths["m"])])
        held.entered[0, 0], held.virtual_s[0, 0] = before.entered[0, 0], before.virtual_s[0, 0]
        tenants = before.finish_s.shape[2]
        held.finish_s[0, 0, :tenants] = before.finish_s[0, 0]
        for name, number in self._tenants.items():
            held.weight[0, number] = settings.weights.get(name, 1.0)
        reordered = settings.order != self._settings.order
        self._decision, self._settings = router.fleet.decision, settings
        self._move(before, places)
        if reordered:
            self._rank_anew()

    def _move(self, before: Held, places: int) -> None:
        held, waiters = self._held, self.waiters
        for place, waiter in waiters.items():
            self._write(place, waiter.request)
            for name in ("is_held", "rank", "entry", "late", "since_s"):
                getattr(held, name)[0, place] = getattr(before, name)[0, place]
            model = held.model[0, place]
            held.models_held[0, 0] += held.of_model[0, 0, model] == 0
            held.of_model[0, 0, model] += 1
        count = int(before.length[0, 0])
        held.wait_queue[0, 0, :count], held.length[0, 0] = before.wait_queue[0, 0, :count], count
        taken = waiters.keys() | {left.place for left in self._gone}
        self._free = [place for place in reversed(range(places)) if place not in taken]

    def _rank_anew(self) -> None:
        """Bring who waits in the order that is in force now, in which nobody is owed anything yet."""
        held = self._held
        held.virtual_s[0, 0] = held.finish_s[0, 0] = 0.0
        for place in sorted(self.waiters, key=lambda place: int(held.entry[0, place])):
            waiter = self.waiters[place]
            wait_queue.rank_anew(held, 0, 0, place, self._service_s(waiter.request, waiter.since_s))
        wait_queue.sort(held, 0, 0)

    def _write(self, place: int, request: Request) -> None:
        held = self._held
        key = request.key if isinstance(request.key, int) else None
        values: dict[str, Any] = {
            "model": self.router.fleet.column(request.model),
            "rows": request.rows,
            "deadline_s": request.deadline_s,
            "priority": request.priority,
            "tenant": self._tenant(request.tenant),
            "key": np.uint64(key or 0),
            "keyed": key is not None,
        }
        for name, value in values.items():
            getattr(held, name)[0, place] = value

    def _tenant(self, name: str) -> int:
        """Number of a tenant. One who is owed nothing gives its number up when there are no more."""
        number = self._tenants.get(name)
        if number is None:
            number = len(self._tenants)
            if number >= _LAST_TENANT:
                number = self._tenant_of_nobody()
            if number < _LAST_TENANT:
                self._tenants[name] = number
            self._held.weight[0, number] = self.settings.weights.get(name, 1.0)
        return number

    def _tenant_of_nobody(self) -> int:
        finish_s, virtual_s = self._held.finish_s[0, 0], self._held.virtual_s[0, 0]
        for name, number in self._tenants.items():
            if finish_s[number] <= virtual_s:
                del self._tenants[name]
                return number
        return _LAST_TENANT

    def _check_somebody(self, request: Request, now_s: float, subset: Collection[str] | None) -> None:
        if not np.count_nonzero(self.router.who_may(request, now_s, subset)[1]):
            raise self.router.refuse(request, nobody(self.router.fleet, request), now_s)

    def _service_s(self, request: Request, now_s: float) -> float:
        """Expected on the fastest worker that may serve it; 0: none may."""
        fleet = self.router.fleet
        column, mask = self.router.who_may(request, now_s, None)
        service_s = alone_s(fleet.service, (slice(None), column), float(request.rows))
        return float(service_s[mask].min()) if np.count_nonzero(mask) else 0.0

    def _request_now(self, waiter: Waiter, now_s: float, number: int) -> Request:
        left_s = waiter.request.deadline_s - (now_s - waiter.since_s)
        return dataclasses.replace(waiter.request, number=number, deadline_s=left_s)

    def _let_go(self, place: int, worker: int, now_s: float) -> Departure:
        """Who has left the queue: with the decision, or with what kept it from one."""
        waiter, router = self.waiters[place], self.router
        outcome: Decision | RoutingError
        if worker >= 0:
            outcome = self._route(waiter, now_s, worker)
        else:
            error = nobody(router.fleet, waiter.request) if worker == NOBODY else shed(waiter.request, router.policy)
            outcome = router.refuse(waiter.request, error, now_s)
        self._forget(place)
        return waiter.left(place, outcome)

    def _route(self, waiter: Waiter, now_s: float, only: int | None = None) -> Decision | RoutingError:
        request = self._request_now(waiter, now_s, 0)
        try:
            return self.router.route(request, now_s, waiter.subset, only)
        except RoutingError as error:
            return error

    def _take_out(self, place: int) -> None:
        wait_queue.leave(self._held, 0, 0, wait_queue.position_of(self._held, 0, 0, place))

    def _forget(self, place: int) -> None:
        self.size_bytes -= self.waiters.pop(place).size_bytes
        self._free.append(place)


_DISPATCH = dispatching(
    Compiler(),
    lambda _, waiting, e, b, place, ask, now_s: waiting.see(place, ask, now_s),
    lambda _, waiting, e, b, place, ask, now_s: waiting.choose(place, ask, now_s),
)
