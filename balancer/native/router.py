"""A router whose books Envoys read and write too: everything here happens under their common lock."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy.typing as npt

from balancer.core.errors import RoutingError
from balancer.core.events import Event, WorkerRemoved
from balancer.core.kernel.answers import Compiler, answering
from balancer.core.kernel.books import options_block
from balancer.core.keys import OF_SEQUENCES, STICKY
from balancer.core.router import Answered, Decision, Router
from balancer.core.settings import Settings
from balancer.core.trials.split import Split, Splits
from balancer.core.trials.steering import Plan, Steering
from balancer.core.view import LiveView
from balancer.front.directory import Candidate, Deciding, directory_of, endpoints_of
from balancer.front.folder import BOOKS, JOURNAL, Folder
from balancer.front.journal import Journal, TornError, basis_of
from balancer.front.layouts import MOST_PUBLISHED, Decider
from balancer.front.module import Module
from balancer.front.state import State
from balancer.front.tables import PERIOD_S, Tables
from balancer.front.trials import Trials
from balancer.gateway.kserve import HeaderNames
from balancer.native.call import symbol_of
from balancer.native.library import Compiled, Library
from balancer.native.shared import in_file
from policies.base import Policy, Request
from policies.hashing import mix

logger = logging.getLogger(__name__)
_IDLE_S = 0.1
"""Until it is looked again whether there is a policy to publish."""
_DIRECTORIES_KEPT = 1000
"""Of which it is known who decided; each lasts as long as nothing changes."""


class _SharedKernel(Compiled):
    """The library over books whose working arrays others write to in between."""

    def forget(self) -> None:
        """What lies on the desk is not what was left there."""
        self._masked = self._answered = None


class SharedRouter(Router):
    """Makes one decision after the other, with the Envoys that decide over the same books."""

    def __init__(
        self, policy: Policy, settings: Settings, seed: int, library: Library, module: Module, folder: Folder
    ) -> None:
        """`OSError` where there is no room for what is shared."""
        self._kernel = _SharedKernel(library, in_file(folder.path / BOOKS))
        self._library, self._module, self._folder = library, module, folder
        self._depth = 0
        self._serial = 0
        self._deciders: OrderedDict[int, tuple[tuple[str, ...], tuple[Split, ...]]] = OrderedDict()
        """Names of policies, and splits, by the directories that told of them."""
        self._splits = Splits()
        self._published: tuple[object, ...] | None = None
        self._grpc: Mapping[str, str] = {}
        self._http: Mapping[str, str] = {}
        self._headers: tuple[str | None, ...] = (None,) * 7
        self._wanted = self._no_room = False
        self.journal: Journal | None = None
        self._names: dict[str, str] = {}
        (folder.path / JOURNAL).unlink(missing_ok=True)
        super().__init__(policy, settings, seed, self._kernel)
        self._told_of_policies()
        self.state = State(module, folder, mix(seed))
        self._trials = Trials(self.state)
        self.tables = Tables(self.state, library)
        self._failing = ""
        self.replaced = 0
        """How often somebody kept the lock."""
        with self._alone():
            pass

    @property
    def asked_because(self) -> str:
        """Why Envoys cannot decide by what is configured, and ask; empty: they can."""
        shadow = None if self.steering is None else self.steering.shadow
        if shadow is not None and shadow.share >= 1:
            return "the shadow is asked about each decision"
        if self.witness is not None and self.journal is None:
            return "there is no room to tell of decisions for the decision log"
        if any(self._compiled) or self.publishes:
            return ""
        return f"policy {self.policy.name} is not compiled, and published for at most {MOST_PUBLISHED} workers"

    @property
    def publishes(self) -> bool:
        """Whether Envoys decide by tables of a policy's probabilities."""
        return bool(self._tabled)

    @property
    def _tabled(self) -> dict[int, Policy]:
        """The policies that Envoys decide by tables of, as `Decider`."""
        if len(self.fleet.workers) > MOST_PUBLISHED:
            return {}
        named = zip((Decider.POLICY, Decider.BASELINE, Decider.NEW), self._policies, self._compiled, strict=True)
        return {int(by): policy for by, policy, compiled in named if policy is not None and not compiled}

    def _told_of_policies(self) -> None:
        """The policies that may decide, beside the hashes, and whether they are compiled."""
        plan = Plan() if self.steering is None else self.steering.plan
        self._policies = self.policy, plan.baseline, plan.new
        self._compiled = tuple(each is not None and self._library.answers(each) for each in self._policies)

    def serve(self, wanted: bool) -> None:
        """Whether Envoys are to decide; they do where they can."""
        self._wanted = wanted
        self.state.serve(wanted and not self.asked_because)

    def tell(self, grpc: Mapping[str, str], http: Mapping[str, str]) -> None:
        """The workers' `address:port`, by name."""
        with self._alone():
            self._grpc, self._http, self._published = dict(grpc), dict(http), None
            self._names = {end: name for table in (grpc, http) for name, end in table.items()}

    def worker_at(self, endpoint: str) -> str:
        """Whose `address:port` that is; empty: nobody's."""
        return self._names.get(endpoint, "")

    def read_headers(self, names: HeaderNames) -> None:
        """The headers that may say what the body does not; `NAMED_HEADERS` has their order."""
        with self._alone():
            self._headers, self._published = dataclasses.astuple(names), None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """With the lock; may be nested. What Envoys decided is known then, and they are told of what changed before it
        is let go.
        """
        if self._depth:
            yield
            return
        # Most of it before, as nobody decides while this has the lock.
        self._trials.learn(self.steering, self.fleet.workers)
        if not self.state.lock():
            self._replace()
        self._depth = 1
        self._kernel.forget()
        try:
            self._trials.settle(self.steering, self.fleet.workers)
            self._look()
            yield
            self._publish()
            self._trials.publish(self.steering)
        finally:
            self._depth = 0
            self.state.unlock()

    def _look(self) -> None:
        """Show guards what they are to look at, as it is now."""
        for choice, request, at_s in self._trials.looks():
            self._trials.claimed()
            if self.steering is None:
                continue
            try:
                self.steering.look(choice, request, self.view(request, at_s), at_s)
            except RoutingError:
                continue  # nobody may serve it any more: another one is looked at

    def _replace(self) -> None:
        """Somebody keeps the lock. Whoever it is may go on at any time, so it keeps the books as well."""
        logger.error("an Envoy keeps the lock of the shared state, another one takes its place")
        self.replaced += 1
        flying = self.state.replace()
        self.state.lock()
        self.fleet.renew_block()
        self._count_out(flying, float(self._now_s))
        self._renew_journal()
        # What it was at when it stopped may be half done.
        own = Counter(sent.worker for sent in self._in_flight.values())
        for row, name in enumerate(self.fleet.names):
            for _ in range(int(self.fleet.queue.in_flight[row]) - own[name]):
                self.fleet.ended(name, 0, 0.0, float(self._now_s))
        self._published = None
        self._trials.restart()
        self.serve(self._wanted)

    def tell_decisions(self, share: float | None) -> None:
        """Have Envoys tell of so many of their decisions in a journal; None: of none any more. Where there is no room
        for one, they ask."""
        with self._alone():
            self._published = self.journal = None
            if share is not None:
                try:
                    self.journal = Journal(self._module, self._folder, share)
                except OSError as error:
                    logger.error("decisions of Envoys cannot be recorded, they ask for each request: %s", error)

    def journal_is_torn(self) -> None:
        """What stands in the journal was not written there by an Envoy: go on with another."""
        with self._alone():
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

    _now_s = 0.0
    """Of the last event."""

    def _count_out(self, slots: npt.NDArray[Any], now_s: float) -> None:
        self._trials.dropped(slots["number"].tolist())
        for slot in slots:
            if 0 <= slot["row"] < len(self.fleet.workers):
                self._kernel.count_out(self.fleet, int(slot["row"]), int(slot["column"]), float(slot["rows"]), now_s)

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
            # What was told before no longer holds: Envoys ask until there is room.
            self.state.publish(0)
            self._published = None
            if not self._no_room:
                logger.error("the directory cannot be written, Envoys ask for each request: %s", error)
            self._no_room = True
            return
        self._no_room, self._published = False, basis

    def _write_directory(self) -> None:
        fleet, serial = self.fleet, self._serial + 1
        deciding = Deciding(self._candidates(serial), self._headers, self.journal is not None, self._splits.of)
        content = directory_of(fleet, endpoints_of(fleet, self._grpc, self._http), deciding, serial)
        self._folder.write(f"directory-{serial}", content)
        if self.journal is not None:
            self.journal.stand(serial, basis_of(fleet, *self._policies))
        self.state.publish(serial)
        self._folder.keep_only(f"directory-{serial}", *(each.options for each in deciding.deciders))
        self._serial = serial
        self._deciders[serial] = tuple(each.name for each in deciding.deciders), tuple(self._splits.of.values())
        if len(self._deciders) > _DIRECTORIES_KEPT:
            self._deciders.popitem(last=False)

    def policy_of(self, serial: int, decider: int) -> str:
        """Name of the policy by which Envoys decided with that directory, as `Decider`."""
        if decider in (Decider.STICKY, Decider.SEQUENCES):
            return STICKY.name
        told = self._deciders.get(serial)
        return self.policy.name if told is None else told[0][decider]

    def split_of(self, serial: int, number: int) -> Split | None:
        """The one of that number, from 1, in that directory; None: there is none, or it is not known any more."""
        told = self._deciders.get(serial)
        return told[1][number - 1] if told is not None and 1 <= number <= len(told[1]) else None

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
        """With what it is told in that file."""
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

    def configure(self, policy: Policy, settings: Settings, steering: Steering | None = None) -> None:
        """See `Router`."""
        with self._alone():
            super().configure(policy, settings, steering)
            self._told_of_policies()
            self.tables.clear()
            self._failing = ""
            self.serve(self._wanted)

    def observe(self, event: Event, now_s: float) -> None:
        """See `Router`."""
        self._now_s = now_s
        with self._alone():
            row = self.fleet.index.get(event.worker) if isinstance(event, WorkerRemoved) else None
            super().observe(event, now_s)
            if isinstance(event, WorkerRemoved) and row is not None:
                self.state.row_removed(row)
                self._trials.gone(event.worker)

    def tick(self, now_s: float) -> None:
        """See `Router`."""
        self._now_s = now_s
        with self._alone():
            super().tick(now_s)

    def give_up(self, now_s: float) -> None:
        """Requests whose Envoy is gone, or that have been in flight for too long, count no more. Once a second."""
        before_s = now_s - self.settings.outcome_timeout_s
        self._trials.expire(before_s)
        if self.state.due(before_s):
            self._end_all(partial(self.state.expired, before_s), now_s)
        for ticket in self.state.left():
            self._end_all(partial(self.state.abandoned, ticket), now_s)

    def _end_all(self, found: Callable[[], npt.NDArray[Any]], now_s: float) -> None:
        with self._alone():
            slots = found()
            self._count_out(slots, now_s)
        self.outcomes["expired"] += len(slots)

    def route(
        self, request: Request, now_s: float, subset: Collection[str] | None = None, only: int | None = None
    ) -> Decision:
        """See `Router`."""
        self._now_s = now_s
        with self._alone():
            following, owed = self.state.number, self.state.owed()
            self._number = following if owed is None else owed
            try:
                decision = super().route(request, now_s, subset, only)
                self._trials.claimed()
                for decider, policy in self._tabled.items() if subset is None else ():
                    if policy.name == decision.policy and self._policy_for(request, policy) is policy:
                        self.tables.wish(request, self.fleet, now_s, decider)
                return decision
            finally:
                self.state.number = self._number if owed is None else following
                self._number = self.state.number

    def view(self, request: Request, now_s: float, subset: Collection[str] | None = None) -> LiveView:
        """See `Router`."""
        with self._alone():
            return super().view(request, now_s, subset)

    def answer_now(self, request: Request, now_s: float) -> Answered:
        """See `Router`."""
        with self._alone():
            return super().answer_now(request, now_s)

    def publish_tables(self, now_s: float) -> float:
        """Ask policies that are not compiled, and have Envoys decide by their answers; returns when to do so again, in
        seconds.
        """
        if not (policies := self._tabled):
            return _IDLE_S
        if not len(self.tables):
            return PERIOD_S
        with self._alone():
            self.tables.read(self.fleet, now_s)
        # Nothing else of this process runs meanwhile, so rows stay as they are.
        took = partial(self._trials.took, self.steering, now_s)
        self.tables.compute(policies, self.state.number, self._not_published, took)
        with self._alone():
            self.tables.put()
        return self.tables.wait_s

    def _not_published(self, policy: Policy, failure: str) -> None:
        self.count_failure(policy.name, failure)
        if failure != self._failing:
            logger.error("policy gave no valid answer, it is asked for each request: %s", failure)
        self._failing = failure

    def learn(self) -> None:
        """Guard and rollout take in what Envoys decided, and what came of it; every 20 ms."""
        if self.steering is not None:
            with self._alone():
                pass

    @property
    def next_number(self) -> int:
        """See `Router`."""
        return self.state.number
