"""What peers tell: the picks and ends of other balancers, counted as own ones are, once each.

A peer tells how many requests it has sent to a worker, and how many of them ended, all there ever were. So nothing is
lost with a message, and as little is told as there is to tell, however many requests there were in between.
"""

from collections.abc import Iterable

from balancer import bounds
from balancer.scheduler.events import PeerLost, PeerPicks, PeerTold
from balancer.scheduler.fleet import Fleet
from balancer.scheduler.worker import Worker

_MOST_PASSED = 16
"""Requests that came and ended between two messages, of one worker and model, that are counted in and out."""
_NONE = PeerPicks("", "", 0, 0.0, 0, 0.0)


def count_peer(fleet: Fleet, worker: str, model: str, rows: float, ended: bool, now_s: float) -> None:
    """Count a request in that a peer sent, or out once it `ended`; of workers and models that are not known here,
    nothing."""
    row, column = fleet.index.get(worker), fleet.models.get(model)
    if row is not None and column is not None:
        fleet.kernel.count_peer(fleet, row, column, rows, ended, now_s)


class Told:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._picks: dict[str, dict[tuple[str, str], tuple[Worker, PeerPicks]]] = {}
        """By peer, by worker and model: what it told last, of which worker as it was known then."""
        self._waits: dict[str, dict[str, float]] = {}
        """By peer, by worker: tokens of its prompts that wait there."""

    def take(self, event: PeerTold | PeerLost, now_s: float) -> None:
        if isinstance(event, PeerLost):
            self._lose(event.peer, now_s)
        else:
            self._hear(event, now_s)
        self._fleet.peers_heard = len(self._picks)

    def _hear(self, event: PeerTold, now_s: float) -> None:
        known = self._picks.setdefault(event.peer, {})
        self._waits.setdefault(event.peer, {}).update(event.waits)
        self._wait(worker for worker, _ in event.waits)
        for picks in event.picks:
            row = self._fleet.index.get(picks.worker)
            if row is None or picks.model not in self._fleet.models:
                known.pop((picks.worker, picks.model), None)
                continue
            worker, before = known.get((picks.worker, picks.model), (None, _NONE))
            if worker is not self._fleet.workers[row]:
                # Another worker of that name, or one that was not known: only what is in flight there counts.
                before = picks.at_its_start()
            elif picks.sent < before.sent or picks.done < before.done:
                # The peer has begun to count anew.
                self._count(before, before.all_done(), now_s)
                before = picks.at_its_start()
            self._count(before, picks, now_s)
            known[picks.worker, picks.model] = self._fleet.workers[row], picks

    def _lose(self, peer: str, now_s: float) -> None:
        """What it had in flight counts no more."""
        self._wait(self._waits.pop(peer, {}))
        for worker, picks in self._picks.pop(peer, {}).values():
            row = self._fleet.index.get(picks.worker)
            if row is not None and worker is self._fleet.workers[row]:
                self._count(picks, picks.all_done(), now_s)

    def _wait(self, workers: Iterable[str]) -> None:
        for worker in workers:
            row = self._fleet.index.get(worker)
            if row is not None:
                total = sum(waits.get(worker, 0.0) for waits in self._waits.values())
                self._fleet.prefixes.peer_waiting_tokens[row] = total

    def _count(self, before: PeerPicks, after: PeerPicks, now_s: float) -> None:
        sent, done = after.sent - before.sent, after.done - before.done
        passed = max(min(sent, done) - _MOST_PASSED, 0)
        for count, rows, ended in (
            (sent, after.sent_rows - before.sent_rows, False),
            (done, after.done_rows - before.done_rows, True),
        ):
            each = min(max(rows / count, 1.0), bounds.MAX_ROWS) if count else 1.0
            for _ in range(count - passed):
                count_peer(self._fleet, after.worker, after.model, each, ended, now_s)
