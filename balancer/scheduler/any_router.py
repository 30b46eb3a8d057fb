"""What a router is to whoever sends requests by it: this balancer's alone, or one that Envoys decide beside."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol

from balancer.kernel.checked_answer import LEAST_PENDING
from balancer.kernel.settings import Settings
from balancer.kernel.view import LiveView
from balancer.scheduler.after_decision import Answered, Decision, DecisionObserver
from balancer.scheduler.canary.selector import PolicySelector
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event
from balancer.scheduler.fleet import Fleet
from policies.base import BoolArray, FloatArray, Policy, Request


class AnyRouter(Protocol):
    """`Router`, which says what each is, or `balancer.native.router.SharedRouter`."""

    fleet: Fleet
    failures: Counter[str]
    failed: dict[str, tuple[str, str]]
    outcomes: Counter[str]

    @property
    def policy(self) -> Policy: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def selector(self) -> PolicySelector | None: ...

    @property
    def observer(self) -> DecisionObserver | None: ...

    @observer.setter
    def observer(self, observer: DecisionObserver | None) -> None: ...

    @property
    def next_number(self) -> int: ...

    @property
    def moved(self) -> Callable[[], None]: ...

    @moved.setter
    def moved(self, moved: Callable[[], None]) -> None: ...

    def configure(self, policy: Policy, settings: Settings, selector: PolicySelector | None = None) -> None: ...

    def observe(self, event: Event, now_s: float) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def route(
        self, request: Request, now_s: float, subset: Collection[str] | None = None, only: int | None = None
    ) -> Decision: ...

    def refuse(self, request: Request, error: RoutingError, now_s: float) -> RoutingError: ...

    def leave_out(self, failing: frozenset[tuple[str, str]]) -> None: ...

    def view(self, request: Request, now_s: float, subset: Collection[str] | None = None) -> LiveView: ...

    def who_may(self, request: Request, now_s: float, subset: Collection[str] | None) -> tuple[int, BoolArray]: ...

    def answer_now(self, request: Request, now_s: float) -> Answered: ...

    def answer_of(self, policy: Policy, request: Request, view: LiveView) -> tuple[FloatArray, bool]: ...

    def count_failure(self, policy: str, failure: str, instead: str = LEAST_PENDING) -> None: ...
