"""What follows a decision where somebody watches it, or where nobody has the request by it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol

from balancer.kernel.checked_answer import LEAST
from balancer.kernel.deciding import COUNTS, FULL, INVALID, LATE, NOBODY, SEQUENCE
from balancer.kernel.python_kernel import Picked, ask, new_tuple
from balancer.kernel.view import LiveView
from balancer.scheduler import errors
from balancer.scheduler.canary.selector import Role, Selection, Ticket
from balancer.scheduler.errors import RoutingError
from policies.base import BoolArray, FleetView, FloatArray, Policy, Request

if TYPE_CHECKING:
    from balancer.scheduler.router import Router


class Decision(NamedTuple):
    number: int
    worker: str
    fallbacks: tuple[str, ...]
    """Workers to try next where nothing was executed, best first."""
    propensity: float
    """The probability that the policy gave the worker."""
    policy: str
    """That decided: the one in force, or what stood in for it."""
    at_s: float


class Answered(NamedTuple):
    """What a decision rests on. The view shows it only until the pick is counted."""

    request: Request
    subset: Collection[str] | None
    view: LiveView
    policy: Policy
    """That answered: the one in force, one that stood in for it, or the hash that places the request's key."""
    probabilities: FloatArray
    valid: bool
    """Whether they are the policy's; False: they were replaced by the least pending worker."""
    at_s: float
    role: Role = "in_force"


class DecisionObserver(Protocol):
    """Is shown what becomes of every request; each number once. Must not raise."""

    def decided(self, answered: Answered, decision: Decision | None) -> None:
        """The policy has answered; None: it sheds the request."""

    def refused(self, request: Request, error: RoutingError, at_s: float) -> None:
        """No policy was to answer, since no worker may serve the request."""


class Decided(NamedTuple):
    request: Request
    number: int
    subset: Collection[str] | None
    column: int
    mask: BoolArray
    now_s: float
    how: int
    one: int
    choice: Selection | None
    seconds: float


def in_names(router: Router, request: Request, number: int, policy: Policy, picked: Picked, now_s: float) -> Decision:
    names = router.fleet.names
    fallbacks = () if request.sequence else tuple(map(names.__getitem__, picked.fallbacks))
    return new_tuple(Decision, (number, names[picked.worker], fallbacks, picked.propensity, policy.name, now_s))


def attend(
    router: Router, decided: Decided, by: Policy, hashed: bool, picked: Picked
) -> tuple[Picked, Policy, Ticket | None]:
    """Have who watches see the decision, and somebody decide in place of a policy without a valid answer. Raises as
    `Router.route` does.

    `hashed`: no policy chose. Returns who was picked, by whom, and the ticket of who wants to know how it ends.
    """
    request, now_s, choice, selector = decided.request, decided.now_s, decided.choice, router.selector
    if picked.worker in (NOBODY, FULL, LATE):
        raise router.refused(request, router.refusal(request, picked.worker), now_s)
    role: Role = "hash" if hashed else "in_force" if choice is None else choice.role
    valid, ticket, counted = picked.worker != INVALID, None, bool(decided.how & COUNTS)
    if not valid:
        picked, by, role, valid = _stand_in(router, decided, by, role)
        view, probabilities = _shown(router, decided)
    else:
        view, probabilities = _shown(router, decided)
        if selector is not None and choice is not None and not hashed:
            worker = picked.worker >= 0
            ticket = selector.answered(choice, decided.seconds, request, now_s, worker, None if counted else view)
    if selector is not None and not hashed and not counted:
        selector.watch(request, view, probabilities)
    if router.observer is not None:
        decision = None if picked.worker < 0 else in_names(router, request, decided.number, by, picked, now_s)
        answered = Answered(request, decided.subset, view, by, probabilities, valid, now_s, role)
        router.observer.decided(answered, decision)
    if picked.worker < 0:
        raise errors.shed(request, by)
    if not counted:
        router.fleet.kernel.take(router.fleet, picked.worker, decided.column, request, now_s)
    return picked, by, ticket


def _shown(router: Router, decided: Decided) -> tuple[LiveView, FloatArray]:
    """The view and the answer of the last decision, as long as its pick is not counted."""
    fleet, request, answer = router.fleet, decided.request, router.fleet.kernel.policy_answer
    if answer is not None and answer.probabilities is not None:
        return answer.view, answer.probabilities
    mask = decided.mask if decided.how & SEQUENCE else fleet.decision.mask[0].copy()
    view = LiveView(fleet, mask, decided.column, request, decided.now_s)
    return view, fleet.decision.shares[0].copy()


def _stand_in(router: Router, decided: Decided, by: Policy, role: Role) -> tuple[Picked, Policy, Role, bool]:
    """Who decides in place of a policy without a valid answer: who is picked, by whom, in which role, and whether by
    that policy, or by the least pending."""
    choice, selector, view, failure = decided.choice, router.selector, *_failure(router, decided, by)
    failed = [(by.name, failure)]
    if selector is not None and choice is not None and role != "hash":
        instead = selector.instead(choice, failure, decided.seconds, decided.request, view, decided.now_s)
        if instead is not None:
            by, role = instead
            picked = _decide_again(router, decided, by)
            if picked.worker != INVALID:
                router.count_failure(*failed[0], f"{by.name} decides")
                return picked, by, role, True
            failed.append((by.name, _failure(router, decided, by)[1]))
    for name, why in failed:
        router.count_failure(name, why)
    return _decide_again(router, decided, LEAST), by, role, False


def _failure(router: Router, decided: Decided, by: Policy) -> tuple[FleetView, str]:
    """The view by which the policy had no valid answer, and why not."""
    answer = router.fleet.kernel.policy_answer
    if answer is None:
        mask = router.fleet.decision.mask[0].copy()
        answer = ask(router.fleet, by, decided.request, decided.column, mask, decided.now_s)
    return answer.view, answer.failure


def _decide_again(router: Router, decided: Decided, by: Policy) -> Picked:
    request, number, _, column, mask, now_s, how, one, *_ = decided
    return router.fleet.kernel.decide(router.fleet, by, request, number, column, mask, now_s, how, one)
