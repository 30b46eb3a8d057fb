"""A router whose fleet state Envoys read and write too: everything here happens under their common lock."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.discovery.workers import PortName
from balancer.extproc.kserve import HeaderNames
from balancer.kernel.checked_answer import LEAST_PENDING
from balancer.kernel.compiled.library import Compiled, Library
from balancer.kernel.estimators.prefixes import computed
from balancer.kernel.settings import Settings
from balancer.kernel.view import LiveView
from balancer.native.directory import Directory
from balancer.native.envoy_module import Module
from balancer.native.journal import Journal, TornError
from balancer.native.selector_feed import SelectorFeed
from balancer.native.state import FLEET_STATE, JOURNAL, Folder, SharedState, in_file
from balancer.scheduler.after_decision import Answered, Decision, DecisionObserver
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event, SentPrompt, WorkerRemoved
from balancer.scheduler.router import Router
from policies.base import BoolArray, FloatArray, Policy, Request
from policies.hashing import mix

logger = logging.getLogger(__name__)
MOST_WAITED_S = 0.25
"""After its pick a request whose client keeps the worker waiting counts for no longer than that."""


class SharedRouter:
    """A router over fleet state that Envoys read and write too: each step of it holds the lock that they share."""

    def __init__(
        self, policy: Policy, settings: Settings, seed: int, library: Library, module: Module, folder: Folder
    ) -> None:
        self._router = router = Router(policy, settings, seed, Compiled(library, in_file(folder.path / FLEET_STATE)))
        self.fleet, self.outcomes = router.fleet, router.outcomes
        self.failures, self.failed = router.failures, router.failed
        self._module, self._folder = module, folder
        self._depth, self._now_s = 0, 0.0
        """Steps within steps, and when the last one was."""
        self._wanted = False
        (folder.path / JOURNAL).unlink(missing_ok=True)
        self.journal: Journal | None = None
        self.state = router.numbers = SharedState(module, folder, mix(seed))
        self.directory = Directory(folder, self.state, library)
        self._find_deciders()
        self._selector_feed = SelectorFeed(self.state)
        self.replaced = 0
        with self._locked():
            pass

    @property
    def not_deciding_because(self) -> str:
        """Why Envoys cannot decide by what is configured, and ask; empty: they can."""
        shadow = None if self.selector is None else self.selector.shadow
        if shadow is not None and shadow.share >= 1:
            return "the shadow is asked about each decision"
        if self.observer is not None and self.journal is None:
            return "there is no room for a journal of decisions, from which the decision log is made"
        return "" if self.directory.any_compiled else f"policy {self.policy.name} is not compiled"

    def _find_deciders(self) -> None:
        plan = CanaryPlan() if self.selector is None else self.selector.plan
        self.directory.decide_by(self.policy, plan.baseline, plan.new)

    def serve(self, wanted: bool) -> None:
        """Whether Envoys are to decide; they do where they can."""
        self._wanted = wanted
        self.state.serve(wanted and not self.not_deciding_because)

    def list_endpoints(self, endpoints: Mapping[PortName, Mapping[str, str]]) -> None:
        with self._locked():
            self.directory.list_endpoints(endpoints)

    def read_headers(self, names: HeaderNames, limits_tenants: bool = False) -> None:
        with self._locked():
            self.directory.read_headers(names, limits_tenants)

    @contextmanager
    def _locked(self, now_s: float | None = None) -> Iterator[None]:
        """With the lock; may be nested. `now_s`: of the step that begins.

        What Envoys decided is taken in before it, and what it changed is published before the lock is let go.
        """
        if now_s is not None:
            self._now_s = now_s
        if self._depth:
            yield
            return
        # Most of it before, as nobody decides while this has the lock.
        self._selector_feed.learn(self.selector, self.fleet.workers)
        self._tell_prompts()
        if not self.state.lock():
            self._replace()
        self._depth = 1
        self.fleet.kernel.forget()
        try:
            self._selector_feed.settle(self.selector, self.fleet.workers)
            self._selector_feed.look(self.selector, self.view)
            yield
            self.directory.publish(self.fleet, self.journal)
            self._selector_feed.publish(self.selector)
        finally:
            self._depth = 0
            self.state.unlock()

    def _tell_prompts(self) -> None:
        """Have other balancers hear of the prompts that Envoys sent to workers."""
        fleet = self.fleet
        for batch in self.state.prompts():
            models = {column: model for model, column in fleet.models.items()}
            for row, column, tokens, count, hashes, lengths in batch.tolist():
                if 0 <= row < len(fleet.names) and column in models:
                    prefix = tuple(zip(hashes[:count], lengths[:count], strict=True))
                    fleet.untold_prompts.add(fleet.names[row], SentPrompt(models[column], tokens, prefix))

    def _replace(self) -> None:
        """Somebody keeps the lock. Whoever it is may go on at any time, so it keeps the fleet's state as well."""
        logger.error("an Envoy keeps the lock of the shared state, another one takes its place")
        self.replaced += 1
        flying = self.state.replace()
        self.state.lock()
        self.fleet.renew_block()
        self._selector_feed.dropped(flying["number"].tolist())
        self._count_out(flying, float(self._now_s))
        self._renew_journal()
        # What it was at when it stopped may be half done.
        own = self._router.in_flight_by_worker()
        for row, name in enumerate(self.fleet.names):
            left = self.fleet.own_requests(row)
            for column in np.repeat(np.arange(len(left)), left.astype(int))[own[name] :]:
                self.fleet.ended(name, int(column), 0.0, float(self._now_s))
        self.directory.outdated()
        self._selector_feed.restart()
        self.serve(self._wanted)

    def record_decisions(self, share: float | None) -> None:
        """Have Envoys write that share of their decisions into a journal; None: none any more. Where there is no room
        for one, they ask."""
        with self._locked():
            self.directory.outdated()
            self.journal = None
            if share is not None:
                try:
                    self.journal = Journal(self._module, self._folder, share)
                except OSError as error:
                    logger.error("decisions of Envoys cannot be recorded, they ask for each request: %s", error)

    def journal_is_torn(self) -> None:
        """What stands in the journal was not written there by an Envoy: go on with another."""
        with self._locked():
            self.directory.outdated()
            self._renew_journal(torn=True)

    def _renew_journal(self, *, torn: bool = False) -> None:
        if self.journal is None:
            return
        try:
            self.journal.renew(torn=torn)
        except (OSError, TornError) as error:
            logger.error("decisions of Envoys cannot be recorded, they ask for each request: %s", error)
            self.journal = None

    def _count_out(self, slots: npt.NDArray[Any], now_s: float) -> None:
        for slot in slots:
            if 0 <= slot["row"] < len(self.fleet.workers):
                computed(self.fleet.prefixes, int(slot["row"]), float(slot["to_compute"]))
                self.fleet.kernel.count_out(
                    self.fleet, int(slot["row"]), int(slot["column"]), float(slot["rows"]), now_s
                )

    @property
    def policy(self) -> Policy:
        return self._router.policy

    @property
    def settings(self) -> Settings:
        return self.fleet.settings

    @property
    def selector(self) -> PolicySelector | None:
        return self._router.selector

    @property
    def observer(self) -> DecisionObserver | None:
        return self._router.observer

    @observer.setter
    def observer(self, observer: DecisionObserver | None) -> None:
        self._router.observer = observer

    @property
    def moved(self) -> Callable[[], None]:
        return self._router.moved

    @moved.setter
    def moved(self, moved: Callable[[], None]) -> None:
        self._router.moved = moved

    @property
    def next_number(self) -> int:
        return self.state.next

    def count_failure(self, policy: str, failure: str, instead: str = LEAST_PENDING) -> None:
        self._router.count_failure(policy, failure, instead)

    def configure(self, policy: Policy, settings: Settings, selector: PolicySelector | None = None) -> None:
        with self._locked():
            self._router.configure(policy, settings, selector)
            self._find_deciders()
            self.serve(self._wanted)

    def observe(self, event: Event, now_s: float) -> None:
        with self._locked(now_s):
            row = self.fleet.index.get(event.worker) if isinstance(event, WorkerRemoved) else None
            if row is not None:
                self._tell_prompts()  # by the rows that hold until now
            self._router.observe(event, now_s)
            if isinstance(event, WorkerRemoved) and row is not None:
                self.state.row_removed(row)
                self._selector_feed.gone(event.worker)

    def tick(self, now_s: float) -> None:
        with self._locked(now_s):
            self._router.tick(now_s)

    def route(
        self, request: Request, now_s: float, subset: Collection[str] | None = None, only: int | None = None
    ) -> Decision:
        with self._locked(now_s):
            decision = self._router.route(request, now_s, subset, only)
            self._selector_feed.claimed()
            return decision

    def refuse(self, request: Request, error: RoutingError, now_s: float) -> RoutingError:
        with self._locked():
            return self._router.refuse(request, error, now_s)

    def view(self, request: Request, now_s: float, subset: Collection[str] | None = None) -> LiveView:
        with self._locked():
            return self._router.view(request, now_s, subset)

    def who_may(self, request: Request, now_s: float, subset: Collection[str] | None) -> tuple[int, BoolArray]:
        with self._locked():
            return self._router.who_may(request, now_s, subset)

    def answer_of(self, policy: Policy, request: Request, view: LiveView) -> tuple[FloatArray, bool]:
        with self._locked():
            return self._router.answer_of(policy, request, view)

    def answer_now(self, request: Request, now_s: float) -> Answered:
        with self._locked():
            return self._router.answer_now(request, now_s)

    def leave_out(self, failing: frozenset[tuple[str, str]]) -> None:
        with self._locked():
            self._router.leave_out(failing)

    def give_up(self, now_s: float) -> None:
        """Requests whose Envoy is gone, or that have been in flight for too long, count no more. Once a second."""
        before_s = now_s - self.settings.outcome_timeout_s
        self._selector_feed.expire(before_s)
        if self.state.due(before_s):
            self._end_all(partial(self.state.expired, before_s), now_s)
        for ticket in self.state.left():
            self._end_all(partial(self.state.abandoned, ticket), now_s)

    def give_up_waiting(self, now_s: float) -> None:
        """Requests whose clients keep their workers waiting count no more until they go on."""
        before_s = now_s - MOST_WAITED_S
        if self.state.waits(before_s):
            with self._locked():
                self._count_out(self.state.waited(before_s), now_s)

    def _end_all(self, found: Callable[[], npt.NDArray[Any]], now_s: float) -> None:
        with self._locked():
            slots = found()
            self._selector_feed.dropped(slots["number"].tolist())
            self._count_out(slots, now_s)
        self.outcomes["expired"] += len(slots)

    def learn(self) -> None:
        """Guard and rollout take in what Envoys decided, and what came of it; every 20 ms while requests flow."""
        if self.selector is not None:
            with self._locked():
                pass
