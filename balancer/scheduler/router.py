"""The router: events in, decisions out. Production and the simulator run this same code.

No I/O, no clock, no random state: time is an argument, and the randomness of the decision numbered k is a hash of the
seed and k, so the same seed, events and requests give the same decisions, bit for bit.
"""

from collections import Counter
from collections.abc import Callable, Collection
from itertools import islice
from typing import Protocol

import numpy as np

from balancer import bounds
from balancer.kernel.checked_answer import LEAST_PENDING, answer
from balancer.kernel.deciding import AT_ONCE, COUNTS, FULL, NOBODY, ONE, SEQUENCE
from balancer.kernel.python_kernel import Kernel, new_tuple
from balancer.kernel.settings import Settings
from balancer.kernel.view import LiveView
from balancer.scheduler import errors
from balancer.scheduler.after_decision import Answered, Decided, Decision, DecisionObserver, attend, in_names
from balancer.scheduler.canary.selector import PolicySelector, Role
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import (
    Event,
    Finished,
    FirstToken,
    PeerLost,
    PeerTold,
    Report,
    ReportsLost,
    Sent,
    Withdrawn,
    WorkerAdded,
    WorkerRemoved,
    WorkersAdded,
)
from balancer.scheduler.fleet import ANY_MODEL, Fleet
from balancer.scheduler.in_flight import InFlight, first_token, learn_answer, prompt_counted_last, take_out_prompt
from balancer.scheduler.keys import OF_SEQUENCES, placing
from balancer.scheduler.told import Told
from policies.base import BoolArray, FloatArray, Policy, Request, least
from policies.hashing import mix

_SHOWN_FIRST = AT_ONCE & ~COUNTS
"""Who watches sees the fleet before the pick is counted in."""
EXPIRED_PER_TICK = 1000
"""Requests that are given up at once: more would hold up those that wait."""


def _drop(sent: InFlight | None) -> None:
    """What will have no outcome is no evidence."""
    if sent is not None and sent.ticket is not None:
        sent.ticket.dropped()


class Numbers(Protocol):
    @property
    def next(self) -> int: ...

    def take(self) -> int: ...


class _NumbersFromZero:
    def __init__(self) -> None:
        self.next = 0

    def take(self) -> int:
        number = self.next
        self.next = number + 1
        return number


class Router:
    """Owns the fleet's state; asks the policy; samples its answer."""

    def __init__(
        self, policy: Policy, settings: Settings | None = None, seed: int = 0, kernel: Kernel | None = None
    ) -> None:
        """`kernel`: a compiled one; by default, plain Python."""
        self.fleet = Fleet(settings or Settings(), kernel)
        self.policy = policy
        self.failures: Counter[str] = Counter()
        """Invalid answers by policy; each was replaced by the least pending worker."""
        self.last_failure = ""
        self.failed: dict[str, tuple[str, str]] = {}  # by policy: its last failure, and what happened instead
        self.outcomes: Counter[str] = Counter()
        """Outcomes by what became of them: matched, unmatched, expired."""
        self.observer: DecisionObserver | None = None
        self.selector: PolicySelector | None = None
        """Who decides, where that is not always the policy."""
        self.fleet.kernel.seed = mix(seed)
        self.numbers: Numbers = _NumbersFromZero()
        self._in_flight: dict[int, InFlight] = {}
        self._told = Told(self.fleet)
        self.moved: Callable[[], None] = lambda: None
        """Called with each own request that was counted in or out here."""

    @property
    def next_number(self) -> int:
        return self.numbers.next

    @property
    def settings(self) -> Settings:
        return self.fleet.settings

    def configure(self, policy: Policy, settings: Settings, selector: PolicySelector | None = None) -> None:
        """Swap policy and settings at once; estimators and requests in flight stay."""
        self.policy = policy
        self.selector = selector
        self.fleet.configure(settings)

    def observe(self, event: Event, now_s: float) -> None:
        match event:
            case Finished():
                self._finished(event, now_s)
            case Report():
                self.fleet.report(event, now_s)
            case Sent():
                sent = InFlight(event.worker, self.fleet.column(event.model), event.rows, None, now_s, None, True)
                self.fleet.sent(sent.worker, sent.column, sent.rows, now_s)
                self._keep(event.number, sent)
            case FirstToken():
                flying = self._in_flight.get(event.number)
                if flying is not None:
                    self._in_flight[event.number] = first_token(self.fleet, flying, now_s)
            case Withdrawn():
                _drop(self._end(event.number, now_s))
            case WorkerAdded():
                self.fleet.add((event,))
            case WorkersAdded():
                self.fleet.add(event.workers)
            case WorkerRemoved():
                self.fleet.remove(event.worker)
                gone = [number for number, sent in self._in_flight.items() if sent.worker == event.worker]
                for number in gone:
                    _drop(self._in_flight.pop(number))
            case ReportsLost():
                self.fleet.lose(event.worker)
            case PeerTold() | PeerLost():
                self._told.take(event, now_s)

    def tick(self, now_s: float) -> None:
        """Let time pass; the owner of the clock calls this some ten times a second, and once at the start.

        Requests whose outcome never came (Envoy died, say) stop counting: they are in the order in which they were
        sent, so only those that are due are looked at.
        """
        self.fleet.tick(now_s)
        timeout_s = self.settings.outcome_timeout_s
        for number, sent in list(islice(self._in_flight.items(), EXPIRED_PER_TICK)):
            if now_s - sent.at_s < timeout_s:
                break
            self._expire(number, now_s)

    def route(
        self, request: Request, now_s: float, subset: Collection[str] | None = None, only: int | None = None
    ) -> Decision:
        """Pick a worker, and count the request in flight there.

        Args:
            request: What is known of it; its `number` is set here.
            now_s: The same clock as in `observe`.
            subset: Names of the only workers that may be picked; None: all may.
            only: Row of the one worker that the policy may pick; all others may be its fallbacks.

        Raises:
            UnknownModel: no worker has it and no table names it.
            NoEligibleWorker: none may serve it now.
            Shed: limits or the policy turn it away.
        """
        number = self.numbers.take()
        column, mask = self.who_may(request, now_s, subset)
        selector, policy, choice, begun_s = self.selector, self.policy, None, 0.0
        how = AT_ONCE if self.observer is None else _SHOWN_FIRST
        if selector is not None:
            if self.settings.limits.any or not np.count_nonzero(mask):
                # Nobody is chosen to decide a request that is refused before.
                self._check_limits(request.numbered(number), column, mask, now_s)
            choice = selector.choose(number, now_s)
            if selector.observes(choice, number, now_s):
                how = _SHOWN_FIRST
            policy, begun_s = choice.policy, selector.stopwatch()
        by = policy if request.key is None else self._policy_for(request, policy)
        hashed, ticket = by is not policy, None
        if request.sequence:
            how |= SEQUENCE
        one = -1 if only is None else only
        if one >= 0:
            how |= ONE
        picked = self.fleet.kernel.decide(self.fleet, by, request, number, column, mask, now_s, how, one)
        seconds = 0.0 if selector is None else selector.stopwatch() - begun_s
        if picked.worker >= 0 and how & COUNTS:
            if selector is not None and choice is not None and not hashed:
                ticket = selector.answered(choice, seconds, request, now_s)
        else:
            numbered = request.numbered(number)
            decided = Decided(numbered, number, subset, column, mask, now_s, how, one, choice, seconds)
            picked, by, ticket = attend(self, decided, by, hashed, picked)
        decision = in_names(self, request, number, by, picked, now_s)
        chosen = not hashed and picked.among > 1
        prompt = prompt_counted_last(self.fleet, request, decision.worker)
        sent = (decision.worker, column, float(request.rows), request.key, now_s, ticket, chosen, prompt)
        self._keep(number, new_tuple(InFlight, sent))
        return decision

    def refuse(self, request: Request, error: RoutingError, now_s: float) -> RoutingError:
        """Take note that a request, which has a number of its own from here on, was turned away; returns the error."""
        return self.refused(request.numbered(self.numbers.take()), error, now_s)

    def refused(self, request: Request, error: RoutingError, now_s: float) -> RoutingError:
        if self.observer is not None:
            self.observer.refused(request, error, now_s)
        return error

    def view(self, request: Request, now_s: float, subset: Collection[str] | None = None) -> LiveView:
        """The fleet as a policy would see it for this request; raises as `route` does."""
        column, mask = self.who_may(request, now_s, subset)
        view = LiveView(self.fleet, mask, column, request, now_s)
        self._keep_within_limits(request, view)
        return view

    def who_may(self, request: Request, now_s: float, subset: Collection[str] | None) -> tuple[int, BoolArray]:
        """The column of the request's model, and the workers that may serve it, limits aside, `(n,)`."""
        fleet = self.fleet
        column = fleet.models.get(request.model)
        if column is None:
            column = fleet.models[ANY_MODEL]
            if request.model and not fleet.knows(request.model):
                return column, np.zeros(len(fleet.workers), bool)
        if request.sequence:
            mask = fleet.members(request.model, request.version)
        else:
            mask = fleet.eligible(request.model, request.version, now_s)
        if subset is not None:
            mask = mask & np.array([worker.name in subset for worker in fleet.workers], bool)
        return column, mask

    def answer_now(self, request: Request, now_s: float) -> Answered:
        """What would be answered now, and by whom; nothing is counted. Raises as `route` does."""
        request = request.numbered(self.next_number)
        view = self.view(request, now_s)
        policy: Policy = self.policy
        role: Role = "in_force"
        if self.selector is not None:
            policy, role = self.selector.main()
        placed = self._policy_for(request, policy)
        probabilities, valid = self.answer_of(placed, request, view)
        return Answered(request, None, view, placed, probabilities, valid, now_s, role if placed is policy else "hash")

    def _policy_for(self, request: Request, policy: Policy) -> Policy:
        """The policy, unless a hash places the request's key."""
        return placing(policy, request.key is not None, self.settings.sticky_keys, request.sequence)

    def answer_of(self, policy: Policy, request: Request, view: LiveView) -> tuple[FloatArray, bool]:
        """The policy's answer and True, or the least pending worker where it is no distribution over eligible ones."""
        probabilities, failure = answer(policy, request, view)
        if probabilities is not None:
            return probabilities, True
        self.count_failure(policy.name, failure)
        return least(view.pending, view.eligible), False

    def count_failure(self, policy: str, failure: str, instead: str = LEAST_PENDING) -> None:
        self.failures[policy] += 1
        self.last_failure, self.failed[policy] = failure, (failure, instead)

    def _keep_within_limits(self, request: Request, view: LiveView) -> None:
        """Leave those in the view's mask who may be picked. Raises as `route` does.

        Of a sequence, limits hold at the one worker that may serve it: no other can take its place.
        """
        members = view.mask
        if request.sequence and np.count_nonzero(members):
            view.mask = OF_SEQUENCES.probabilities(request, view) > 0
        count, view.mask = self.fleet.kernel.admit(self.fleet, request, view)
        if count < 0:
            raise self.refusal(request, count)
        if request.sequence:
            view.mask = members

    def _check_limits(self, request: Request, column: int, mask: BoolArray, now_s: float) -> None:
        try:
            self._keep_within_limits(request, LiveView(self.fleet, mask, column, request, now_s))
        except RoutingError as error:
            raise self.refused(request, error, now_s) from None

    def refusal(self, request: Request, why: int) -> RoutingError:
        if why == NOBODY:
            known = not request.model or self.fleet.knows(request.model)
            return errors.nobody(self.fleet, request) if known else errors.unknown(request)
        refused_at = self.fleet.kernel.refused_at
        if why == FULL:
            return errors.FULL.of(model=request.model, limit=refused_at)
        deadline_ms = float(request.deadline_s) * 1000
        return errors.LATE.of(model=request.model, best_ms=refused_at * 1000, deadline_ms=deadline_ms)

    def _expire(self, number: int, now_s: float) -> None:
        _drop(self._end(number, now_s))
        self.outcomes["expired"] += 1

    def _keep(self, number: int, sent: InFlight) -> None:
        if len(self._in_flight) >= bounds.MAX_IN_FLIGHT:
            self._expire(next(iter(self._in_flight)), sent.at_s)
        self._in_flight[number] = sent
        self.moved()

    def leave_out(self, failing: frozenset[tuple[str, str]]) -> None:
        """Give these workers, each with a model, none of its requests while others may have them, see `outliers`."""
        self.fleet.leave_out(failing)

    def _finished(self, event: Finished, now_s: float) -> None:
        sent = self._take_out(event.number)
        self.outcomes["unmatched" if sent is None else "matched"] += 1
        if sent is not None and sent.ticket is not None:
            if event.void == "client":
                sent.ticket.dropped()
            else:
                # A deadline that passed says nothing of the worker, but something of who picked it.
                sent.ticket.ended(event.latency_s, event.ok, now_s)
        # An error that the request may have caused counts against a worker where no client can have aimed it there: by
        # a key, or by a model that only that worker has.
        void = event.void
        if void and (void != "request" or sent is None or not sent.chosen):
            if sent is not None:
                self.fleet.ended(sent.worker, sent.column, sent.rows, now_s)
        elif sent is None:
            self.fleet.outcome(event.worker, event.latency_s, event.ok, now_s)
        else:
            learn_answer(self.fleet, sent, event, now_s)
            self.fleet.finished(sent.worker, sent.column, sent.rows, sent.key, event, now_s)

    def in_flight_by_worker(self) -> Counter[str]:
        return Counter(sent.worker for sent in self._in_flight.values())

    def _end(self, number: int, now_s: float) -> InFlight | None:
        """Count a request out; None where it was not counted in, or was so before."""
        sent = self._take_out(number)
        if sent is not None:
            self.fleet.ended(sent.worker, sent.column, sent.rows, now_s)
        return sent

    def _take_out(self, number: int) -> InFlight | None:
        sent = self._in_flight.pop(number, None)
        if sent is not None:
            take_out_prompt(self.fleet, sent)
            self.moved()
        return sent
