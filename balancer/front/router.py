"""A router whose books Envoys read and write too: everything here happens under their common lock."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy.typing as npt

from balancer.core.events import Event, WorkerRemoved
from balancer.core.kernel.answers import Compiler, answering
from balancer.core.kernel.books import options_block
from balancer.core.keys import OF_SEQUENCES, STICKY
from balancer.core.router import Answered, Decision, Router
from balancer.core.settings import Settings
from balancer.core.trials.steering import Steering
from balancer.core.view import LiveView
from balancer.front.directory import Deciding, directory_of, endpoints_of
from balancer.front.folder import BOOKS, Folder
from balancer.front.module import Module
from balancer.front.state import State
from balancer.gateway.kserve import HeaderNames
from balancer.native.call import symbol_of
from balancer.native.library import Compiled, Library
from balancer.native.shared import in_file
from policies.base import Policy, Request
from policies.hashing import mix

logger = logging.getLogger(__name__)


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
        self._library, self._folder = library, folder
        self._depth = 0
        self._serial = 0
        self._published: tuple[object, ...] | None = None
        self._grpc: Mapping[str, str] = {}
        self._http: Mapping[str, str] = {}
        self._headers: tuple[str | None, ...] = (None,) * 7
        self._wanted = self._no_room = False
        self._compiled = library.answers(policy)
        super().__init__(policy, settings, seed, self._kernel)
        self.state = State(module, folder, mix(seed))
        self.replaced = 0
        """How often somebody kept the lock."""
        with self._alone():
            pass

    @property
    def asked_because(self) -> str:
        """Why Envoys cannot decide by what is configured, and ask; empty: they can."""
        if self.steering is not None:
            return "guard, shadow and rollout compare policies here"
        if self.witness is not None:
            return "the decision log records what each decision rested on"
        if self.lines_wanted:
            return "the log tells of decisions (log.decisions_share)"
        return "" if self._compiled else f"policy {self.policy.name} is not compiled"

    def serve(self, wanted: bool) -> None:
        """Whether Envoys are to decide; they do where they can."""
        self._wanted = wanted
        self.state.serve(wanted and not self.asked_because)

    def tell(self, grpc: Mapping[str, str], http: Mapping[str, str]) -> None:
        """The workers' `address:port`, by name."""
        with self._alone():
            self._grpc, self._http, self._published = dict(grpc), dict(http), None

    def read_headers(self, names: HeaderNames) -> None:
        """The headers that may say what the body does not; `enum named_header` has their order."""
        with self._alone():
            self._headers, self._published = dataclasses.astuple(names), None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """With the lock; may be nested. Envoys are told of what changed before it is let go."""
        if self._depth:
            yield
            return
        if not self.state.lock():
            self._replace()
        self._depth = 1
        self._kernel.forget()
        try:
            yield
            self._publish()
        finally:
            self._depth = 0
            self.state.unlock()

    def _replace(self) -> None:
        """Somebody keeps the lock. Whoever it is may go on at any time, so it keeps the books as well."""
        logger.error("an Envoy keeps the lock of the shared state, another one takes its place")
        self.replaced += 1
        flying = self.state.replace()
        self.state.lock()
        self.fleet.renew_block()
        self._count_out(flying, float(self._now_s))
        # What it was at when it stopped may be half done.
        own = Counter(sent.worker for sent in self._in_flight.values())
        for row, name in enumerate(self.fleet.names):
            for _ in range(int(self.fleet.queue.in_flight[row]) - own[name]):
                self.fleet.ended(name, 0, 0.0, float(self._now_s))
        self._published = None
        self.serve(self._wanted)

    lines_wanted = False
    """Whether a log is to tell of decisions, which those of Envoys are not told for."""
    _now_s = 0.0
    """Of the last event."""

    def _count_out(self, slots: npt.NDArray[Any], now_s: float) -> None:
        for slot in slots:
            if 0 <= slot["row"] < len(self.fleet.workers):
                self._kernel.count_out(self.fleet, int(slot["row"]), int(slot["column"]), float(slot["rows"]), now_s)

    def _publish(self) -> None:
        fleet = self.fleet
        basis = (fleet.revision, fleet.block.generation, self.policy, fleet.settings, self._headers)
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
        deciding = Deciding(self.policy.name, self.policy.needs_key, self._options(serial), self._headers)
        content = directory_of(fleet, endpoints_of(fleet, self._grpc, self._http), deciding, serial)
        self._folder.write(f"directory-{serial}", content)
        self.state.publish(serial)
        self._folder.keep_only(f"directory-{serial}", *deciding.options)
        self._serial = serial

    def _options(self, serial: int) -> tuple[str, str, str]:
        """Files of what the deciders are told. A policy that is not compiled does not decide in Envoy: any will do."""
        deciders = (self.policy if self._compiled else STICKY, STICKY, OF_SEQUENCES)
        names = []
        for place, policy in enumerate(deciders):
            found = answering(policy, Compiler())
            assert found is not None
            name = f"options-{serial}-{place}"
            memory = in_file(self._folder.path / name)
            block = options_block(found, self.fleet.block.room, symbol_of(found.name), memory, self._library.stamp)
            names.append(f"{name}-{self.state.digest(block.buffer):016x}")
            self._folder.rename(name, names[-1])
        return names[0], names[1], names[2]

    def configure(self, policy: Policy, settings: Settings, steering: Steering | None = None) -> None:
        """See `Router`."""
        with self._alone():
            self._compiled = self._library.answers(policy)
            super().configure(policy, settings, steering)
            self.serve(self._wanted)

    def observe(self, event: Event, now_s: float) -> None:
        """See `Router`."""
        self._now_s = now_s
        with self._alone():
            row = self.fleet.index.get(event.worker) if isinstance(event, WorkerRemoved) else None
            super().observe(event, now_s)
            if row is not None:
                self.state.row_removed(row)

    def tick(self, now_s: float) -> None:
        """See `Router`."""
        self._now_s = now_s
        with self._alone():
            super().tick(now_s)

    def give_up(self, now_s: float) -> None:
        """Requests whose Envoy is gone, or that have been in flight for too long, count no more. Once a second."""
        before_s = now_s - self.settings.outcome_timeout_s
        if self.state.due(before_s):
            self._end_all(partial(self.state.expired, before_s), now_s)
        for ticket in self.state.left():
            self._end_all(partial(self.state.abandoned, ticket), now_s)

    def _end_all(self, found: Callable[[], npt.NDArray[Any]], now_s: float) -> None:
        with self._alone():
            slots = found()
            self._count_out(slots, now_s)
        self.outcomes["expired"] += len(slots)

    def route(self, request: Request, now_s: float, subset: Collection[str] | None = None) -> Decision:
        """See `Router`."""
        self._now_s = now_s
        with self._alone():
            self._number = self.state.number
            try:
                return super().route(request, now_s, subset)
            finally:
                self.state.number = self._number

    def view(self, request: Request, now_s: float, subset: Collection[str] | None = None) -> LiveView:
        """See `Router`."""
        with self._alone():
            return super().view(request, now_s, subset)

    def answer_now(self, request: Request, now_s: float) -> Answered:
        """See `Router`."""
        with self._alone():
            return super().answer_now(request, now_s)

    @property
    def next_number(self) -> int:
        """See `Router`."""
        return self.state.number
