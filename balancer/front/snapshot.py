"""The books of a fleet as they were at one moment, in which picks can be counted that nobody made."""

from __future__ import annotations

from typing import cast

import numpy as np

from balancer.core.fleet import Fleet
from balancer.core.kernel.books import Ledger
from balancer.core.kernel.state import ROOM, AnyArray, Desk
from balancer.core.settings import Settings
from balancer.core.view import LiveView
from balancer.native.library import Compiled, Library
from policies.base import BoolArray, Request


class Snapshot:
    """Stands for the fleet where columns are computed and picks counted in. Models have the fleet's columns."""

    def __init__(self, library: Library) -> None:
        self.kernel = Compiled(library)
        self.settings = Settings()
        self.generation = 0
        """Of the books; 0: nothing was read yet."""
        self.at_s = 0.0
        self._of: Desk | None = None
        self._pairs: list[tuple[AnyArray, AnyArray]] = []

    def read(self, fleet: Fleet, now_s: float) -> None:
        """Take the numbers over as they are; with the lock over them held."""
        if fleet.desk is not self._of:
            self._lay_out(fleet)
        for here, there in self._pairs:
            np.copyto(here, there)
        self.settings, self.at_s = fleet.settings, now_s
        self.before = self.queue.in_flight.copy()
        """In flight then, `(n,)`."""
        self.counted = 0
        """Picks that were counted in since."""

    def _lay_out(self, fleet: Fleet) -> None:
        ledger, block = Ledger(), fleet.block
        workers, models = fleet.desk.mask.shape[1], fleet.service.fixed_s.shape[1]
        ledger.add(workers=workers, models=models)
        here = ledger.block.arrays
        room = {f"desk.{name}" for name in ROOM}
        self._pairs = [(here[name], there) for name, there in block.arrays.items() if name not in room]
        self.desk, self.queue, self.service = ledger.desk, ledger.queue, ledger.service
        self.latency, self.tokens, self.caches = ledger.latency, ledger.tokens, ledger.caches
        self.reported_s, self.weight, self.name_hash = self.desk.reported_s, self.desk.weight[0], self.desk.name_hash[0]
        self._of, self.generation = fleet.desk, block.generation

    @property
    def workers(self) -> int:
        """How many there are."""
        return int(self.desk.mask.shape[1])

    def view(self, request: Request, column: int, eligible: BoolArray) -> LiveView | None:
        """As the policy is shown it; None where the limits leave nobody."""
        # Of the fleet a view reads what is here as well.
        view = LiveView(cast(Fleet, self), eligible, column, float(request.rows), self.at_s, request.key)
        # A slow start is left to each request's own lot.
        if self.settings.limits.any or self.settings.zones.own:
            found = self.kernel.keep_within_limits(self, request, view)
            if found.refused:
                return None
            view.mask = found.left
        return view

    def count_in(self, row: int, column: int, rows: float) -> None:
        """A pick that nobody made."""
        self.kernel.count_in(self, row, column, rows, self.at_s)
        self.counted += 1
