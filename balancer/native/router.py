"""A router whose fleet state Envoys read and write too: everything here happens under their common lock."""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy.typing as npt

from balancer.extproc.kserve import HeaderNames
from balancer.kernel.compiled.call import symbol_of
from balancer.kernel.compiled.library import Compiled, Library
from balancer.kernel.fleet_state import options_block
from balancer.kernel.policy_answers import Compiler, answering
from balancer.kernel.settings import Settings
from balancer.native.directory import Candidate, Deciding, directory_of, endpoints_of
from balancer.native.envoy_module import Module
from balancer.native.folder import FLEET_STATE, JOURNAL, Folder, in_file
from balancer.native.journal import Journal, TornError, basis_of
from balancer.native.layouts import Decider
from balancer.native.selector_feed import SelectorFeed
from balancer.native.state import SharedState
from balancer.scheduler.after_decision import Answered, Decision, DecisionObserver
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.canary.split import Split, Splits
from balancer.scheduler.checked_answer import LEAST_PENDING
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event, WorkerRemoved
from balancer.scheduler.keys import OF_SEQUENCES, STICKY
from balancer.scheduler.router import Router
from balancer.scheduler.view import LiveView
from policies.base import BoolArray, FloatArray, Policy, Request
from policies.hashing import mix

logger = logging.getLogger(__name__)
MOST_WAITED_S = 0.25
"""After its pick a request whose client keeps the worker waiting counts for no longer than that."""
_DIRECTORIES_KEPT = 1000
"""Of which it is known who decided; each lasts as long as nothing changes."""


class SharedRouter:
    """A router over fleet state that Envoys read and write too: each step of it holds the lock that they share."""

    def __init__(
        self, policy: Policy, settings: Settings, seed: int, library: Library, module: Module, folder: Folder
    ) -> None:
        """`OSError` where there is no room for what is shared."""
        self._router = router = Router(policy, settings, seed, Compiled(library, in_file(folder.path / FLEET_STATE)))
        self.fleet, self.outcomes = router.fleet, router.outcomes
        self.failures, self.failed = router.failures, router.failed
        self._library, self._module, self._folder = library, module, folder
        self._depth = self.serial = 0
        self._now_s = 0.0
        """Of the last step."""
        self._deciders: OrderedDict[int, tuple[tuple[str, ...], tuple[Split, ...]]] = OrderedDict()
        """Names of policies, and splits, by the number of the directory that has them."""
        self._splits = Splits()
        self._published: tuple[object, ...] | None = None
        self._grpc: Mapping[str, str] = {}
        self._http: Mapping[str, str] = {}
        self._headers: tuple[str | None, ...] = (None,) * 7
        self._wanted = self._no_room = self._limits_tenants = False
        self.journal: Journal | None = None
        self._names: dict[str, str] = {}
        (folder.path / JOURNAL).unlink(missing_ok=True)
        self._find_deciders()
        self.state = router.numbers = SharedState(module, folder, mix(seed))
        self._trials = SelectorFeed(self.state)
        self.replaced = 0
        """How often somebody kept the lock."""
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
        return "" if any(self._compiled) else f"policy {self.policy.name} is not compiled"

    def _find_deciders(self) -> None:
        """The policies that may decide, beside the hashes, and whether they are compiled."""
        plan = CanaryPlan() if self.selector is None else self.selector.plan
        self._policies = self.policy, plan.baseline, plan.new
        self._compiled = tuple(each is not None and self._library.answers(each) for each in self._policies)

    def serve(self, wanted: bool) -> None:
        """Whether Envoys are to decide; they do where they can."""
        self._wanted = wanted
        self.state.serve(wanted and not self.not_deciding_because)

    def list_endpoints(self, grpc: Mapping[str, str], http: Mapping[str, str]) -> None:
        """The workers' `address:port`, by name."""
        with self._locked():
            self._grpc, self._http, self._published = dict(grpc), dict(http), None
            self._names = {end: name for table in (grpc, http) for name, end in table.items()}

    def worker_at(self, endpoint: str) -> str:
        """Whose `address:port` that is; empty: nobody's."""
        return self._names.get(endpoint, "")

    def read_headers(self, names: HeaderNames, limits_tenants: bool = False) -> None:
        """The headers that may say what the body does not, as `NAMED_HEADERS`; the other as of `Deciding`."""
        with self._locked():
            self._headers, self._limits_tenants, self._published = dataclasses.astuple(names), limits_tenants, None

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
        self._trials.learn(self.selector, self.fleet.workers)
        if not self.state.lock():
            self._replace()
        self._depth = 1
        self.fleet.kernel.forget()
        try:
            self._trials.settle(self.selector, self.fleet.workers)
            self._trials.look(self.selector, self.view)
            yield
            self._publish()
            self._trials.publish(self.selector)
        finally:
            self._depth = 0
            self.state.unlock()

    def _replace(self) -> None:
        """Somebody keeps the lock. Whoever it is may go on at any time, so it keeps the fleet's state as well."""
        logger.error("an Envoy keeps the lock of the shared state, another one takes its place")
        self.replaced += 1
        flying = self.state.replace()
        self.state.lock()
        self.fleet.renew_block()
        self._trials.dropped(flying["number"].tolist())
        self._count_out(flying, float(self._now_s))
        self._renew_journal()
        # What it was at when it stopped may be half done.
        own = self._router.in_flight_by_worker()
        for row, name in enumerate(self.fleet.names):
            for _ in range(int(self.fleet.queue.in_flight[row]) - own[name]):
                self.fleet.ended(name, 0, 0.0, float(self._now_s))
        self._published = None
        self._trials.restart()
        self.serve(self._wanted)

    def record_decisions(self, share: float | None) -> None:
        """Have Envoys write that share of their decisions into a journal; None: none any more. Where there is no room
        for one, they ask."""
        with self._locked():
            self._published = self.journal = None
            if share is not None:
                try:
                    self.journal = Journal(self._module, self._folder, share)
                except OSError as error:
                    logger.error("decisions of Envoys cannot be recorded, they ask for each request: %s", error)

    def journal_is_torn(self) -> None:
        """What stands in the journal was not written there by an Envoy: go on with another."""
        with self._locked():
            self._published = None
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
                self.fleet.kernel.count_out(
                    self.fleet, int(slot["row"]), int(slot["column"]), float(slot["rows"]), now_s
                )

    def share_splits(self, splits: Splits) -> None:
        """Have Envoys draw by these, as they stand whenever the lock is let go."""
        self._splits = splits

    def _publish(self) -> None:
        fleet, splits = self.fleet, [(split, split.share) for split in self._splits.of.values()]
        basis = (fleet.revision, fleet.block.generation, self._policies, fleet.settings, self._headers, splits)
        if self._published is not None and all(a is b or a == b for a, b in zip(basis, self._published, strict=True)):
            return
        try:
            self._write_directory()
        except OSError as error:
            # The last directory no longer holds: Envoys ask until there is room.
            self.state.publish(0)
            self._published = None
            if not self._no_room:
                logger.error("the directory cannot be written, Envoys ask for each request: %s", error)
            self._no_room = True
            return
        self._no_room, self._published = False, basis

    def _write_directory(self) -> None:
        fleet, serial = self.fleet, self.serial + 1
        recorded, limits, splits = self.journal is not None, self._limits_tenants, self._splits.of
        deciding = Deciding(self._candidates(serial), self._headers, recorded, limits, splits)
        content = directory_of(fleet, endpoints_of(fleet, self._grpc, self._http), deciding, serial)
        self._folder.write(f"directory-{serial}", content)
        if self.journal is not None:
            self.journal.stand(serial, basis_of(fleet, *self._policies))
        self.state.publish(serial)
        self._folder.keep_only(f"directory-{serial}", *(each.options for each in deciding.deciders))
        self.serial = serial
        self._deciders[serial] = tuple(each.name for each in deciding.deciders), tuple(self._splits.of.values())
        if len(self._deciders) > _DIRECTORIES_KEPT:
            self._deciders.popitem(last=False)

    def policy_of(self, serial: int, decider: int) -> str:
        """Name of the policy by which Envoys decided with that directory, as `Decider`."""
        if decider in (Decider.STICKY, Decider.SEQUENCES):
            return STICKY.name
        known = self._deciders.get(serial)
        return self.policy.name if known is None else known[0][decider]

    def split_of(self, serial: int, number: int) -> Split | None:
        """The one of that number, from 1, in that directory; None: there is none, or it is not known any more."""
        known = self._deciders.get(serial)
        return known[1][number - 1] if known is not None and 1 <= number <= len(known[1]) else None

    def _candidates(self, serial: int) -> tuple[Candidate, ...]:
        """In the order of `Decider`."""
        (policy, baseline, new), (compiled, baseline_compiled, new_compiled) = self._policies, self._compiled
        return (
            self._candidate(policy, compiled, f"options-{serial}-policy"),
            self._candidate(STICKY, True, f"options-{serial}-sticky"),
            self._candidate(OF_SEQUENCES, True, f"options-{serial}-sequences"),
            self._candidate(baseline, baseline_compiled, f"options-{serial}-baseline"),
            self._candidate(new, new_compiled, f"options-{serial}-new"),
        )

    def _candidate(self, policy: Policy | None, compiled: bool, file: str) -> Candidate:
        """With its options in that file."""
        if policy is None:
            return Candidate("", False, "")
        found = answering(policy, Compiler())
        if found is None or not compiled:
            return Candidate(policy.name, policy.needs_key, "")
        memory = in_file(self._folder.path / file)
        block = options_block(found, self.fleet.block.room, symbol_of(found.name), memory, self._library.stamp)
        name = f"{file}-{self.state.digest(block.buffer):016x}"
        self._folder.rename(file, name)
        return Candidate(policy.name, policy.needs_key, name)

    @property
    def policy(self) -> Policy:
        """See `Router`, as of all that follows."""
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
            self._router.observe(event, now_s)
            if isinstance(event, WorkerRemoved) and row is not None:
                self.state.row_removed(row)
                self._trials.gone(event.worker)

    def tick(self, now_s: float) -> None:
        with self._locked(now_s):
            self._router.tick(now_s)

    def route(
        self, request: Request, now_s: float, subset: Collection[str] | None = None, only: int | None = None
    ) -> Decision:
        with self._locked(now_s):
            decision = self._router.route(request, now_s, subset, only)
            self._trials.claimed()
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
        self._trials.expire(before_s)
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
            self._trials.dropped(slots["number"].tolist())
            self._count_out(slots, now_s)
        self.outcomes["expired"] += len(slots)

    def learn(self) -> None:
        """Guard and rollout take in what Envoys decided, and what came of it; every 20 ms while requests flow."""
        if self.selector is not None:
            with self._locked():
                pass
