"""What peers tell: the picks and ends of other balancers, counted as own ones are, once each.

A peer tells how many requests it has sent to a worker, and how many of them ended, all there ever were. The next
message makes up for one that was lost, and its size does not depend on how many requests came in between.
"""

from collections.abc import Iterable
from typing import NamedTuple

from balancer import bounds
from balancer.scheduler.events import PeerLost, PeerPicks, PeerTold
from balancer.scheduler.fleet import Fleet
from balancer.scheduler.worker import Worker

_MOST_PASSED = 16
"""Requests that came and ended between two messages, of one worker and model, that are counted in and out."""
_MOST_IN_FLIGHT = 1000
"""That count of one peer, worker and model."""
_MOST_AT_ONCE = 10_000
"""That one message may have counted in; the rest of them never count."""


class _Known(NamedTuple):
    worker: Worker
    """As it was known when the peer told of it."""
    picks: PeerPicks
    """What it told last."""
    in_flight: int
    """As far as they count here."""


def count_peer(fleet: Fleet, worker: str, model: str, rows: float, ended: bool, now_s: float) -> None:
    """Count a request in that a peer sent, or out once it `ended`; of workers and models that are not known here,
    nothing."""
    row, column = fleet.index.get(worker), fleet.models.get(model)
    if row is not None and column is not None:
        fleet.kernel.count_peer(fleet, row, column, rows, ended, now_s)


class Told:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._picks: dict[str, dict[tuple[str, str], _Known]] = {}
        """By peer, by worker and model."""
        self._waits: dict[str, dict[str, float]] = {}
        """By peer, by worker: tokens of its prompts that wait there."""
        self._revision = -1
        self._left = 0
        """Requests that may still be counted in."""

    def take(self, event: PeerTold | PeerLost, now_s: float) -> None:
        self._forget()
        if isinstance(event, PeerLost):
            self._lose(event.peer, now_s)
        else:
            self._hear(event, now_s)
        self._fleet.peers_heard = len(self._picks)

    def _forget(self) -> None:
        """Workers that are gone."""
        if self._revision == self._fleet.revision:
            return
        self._revision = self._fleet.revision
        for peer, known in self._picks.items():
            self._picks[peer] = {at: each for at, each in known.items() if self._is_there(each)}
            self._waits[peer] = {w: tokens for w, tokens in self._waits[peer].items() if w in self._fleet.index}

    def _is_there(self, known: _Known) -> bool:
        row = self._fleet.index.get(known.picks.worker)
        return row is not None and self._fleet.workers[row] is known.worker

    def _hear(self, event: PeerTold, now_s: float) -> None:
        known, self._left = self._picks.setdefault(event.peer, {}), _MOST_AT_ONCE
        waits = {worker: tokens for worker, tokens in event.waits if worker in self._fleet.index}
        self._waits.setdefault(event.peer, {}).update(waits)
        self._wait(waits)
        for picks in event.picks:
            row, at = self._fleet.index.get(picks.worker), (picks.worker, picks.model)
            if row is None or picks.model not in self._fleet.models:
                continue
            before = known.get(at)
            if before is not None and (picks.sent < before.picks.sent or picks.done < before.picks.done):
                # The peer has begun to count anew.
                self._count(before, before.picks.all_done(), now_s)
                before = None
            if before is None:
                # Only what is in flight there counts.
                before = _Known(self._fleet.workers[row], picks.at_its_start(), 0)
            known[at] = self._count(before, picks, now_s)

    def _lose(self, peer: str, now_s: float) -> None:
        """What it had in flight counts no more."""
        self._wait(self._waits.pop(peer, {}))
        for known in self._picks.pop(peer, {}).values():
            self._count(known, known.picks.all_done(), now_s)

    def _wait(self, workers: Iterable[str]) -> None:
        for worker in workers:
            total = sum(waits.get(worker, 0.0) for waits in self._waits.values())
            self._fleet.prefixes.peer_waiting_tokens[self._fleet.index[worker]] = total

    def _count(self, before: _Known, after: PeerPicks, now_s: float) -> _Known:
        sent, done = after.sent - before.picks.sent, after.done - before.picks.done
        passed = max(min(sent, done) - _MOST_PASSED, 0)
        came = min(sent - passed, _MOST_IN_FLIGHT - before.in_flight, self._left)
        ended = min(done - passed, before.in_flight + came)
        self._left -= came
        for count, all_of_them, rows, out in (
            (came, sent, after.sent_rows - before.picks.sent_rows, False),
            (ended, done, after.done_rows - before.picks.done_rows, True),
        ):
            for _ in range(count):
                each = min(max(rows / all_of_them, 1.0), bounds.MAX_ROWS)
                count_peer(self._fleet, after.worker, after.model, each, out, now_s)
        return before._replace(picks=after, in_flight=before.in_flight + came - ended)
