"""How much waits at each worker: known requests counted exactly, everybody else's dead-reckoned between reports.

A balancer knows its own picks at once and their ends within milliseconds, and those of its peers, which are balancers
that tell it of them, a little later; both are the known ones. What others sent it knows only through reports, which are
old by the time they are used. Between two reports it assumes that the others send as it does (each of `balancers` sees
about one share of the traffic) and that the device works through its queue at one second of work a second, divided
among known and others' work as it lies there. Requests of several balancers share batches.

Work is counted in seconds of the device: a batch costs its fixed time once, so the requests that will share a batch
share that cost (see `balancer.kernel.estimators.service`).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.kernel.estimators.columns import At, per_model, per_worker
from balancer.kernel.estimators.service import Service, alone_s
from policies.base import FloatArray

# Arrays of no axis: NumPy takes twice as long to combine a column with a float of Python's.
_ZERO, _ONE, _TINY_S = np.array(0.0), np.array(1.0), np.array(1e-9)
_GIVEN_UP = np.array(20.0)
"""How many times as long as expected an execution counts as one: an end that was not seen must not count for ever."""
_MOST_VARIED = np.array(2.0)
_SPREAD_GAIN, _MOST_SPREAD = 0.02, 50.0
"""How far one report moves the spread, and the most it may say: what is beyond comes of a pause, and is no spread."""


@dataclass
class Queue:
    """What is known to lie at each worker; times are seconds of the router's clock."""

    in_flight: FloatArray = per_worker()
    """Known requests: sent, and not seen or told to have ended."""
    known_requests: FloatArray = per_model()
    """Those of one model."""
    known_rows: FloatArray = per_model()
    waiting_rows: FloatArray = per_model()
    """Those of the known rows that do not execute yet: what comes now can join them alone."""
    known_work_model_s: FloatArray = per_model()
    """Device seconds for the known rows of one model."""
    waiting_model_s: FloatArray = per_model()
    """Of them, for the rows that wait."""
    forming_rows: FloatArray = per_model()
    """All rows that wait there, whoever sent them, as far as is known: what comes now can join them."""
    known_work_s: FloatArray = per_worker()
    executing_s: FloatArray = per_worker()
    """Of them, for the rows that execute, of all models."""
    progress_s: FloatArray = per_worker(-np.inf)
    """When the device last finished something or stopped being idle: what executes started about then."""
    spread: FloatArray = per_worker()
    """Variance of what executions take, over the square of what they are expected to."""
    reported_pending: FloatArray = per_worker()
    """As the last report says: queued, not executing."""
    peer_in_flight: FloatArray = per_worker()
    """Requests there that are not known, at `peer_counted_s`."""
    peer_work_s: FloatArray = per_worker()
    """Device seconds for those, at `peer_counted_s`."""
    peer_counted_s: FloatArray = per_worker(-np.inf)
    """When they were last counted."""
    balancers: FloatArray = per_worker(1.0)
    """That the worker reports to: this one, and those that do not tell it of their picks."""
    sent_requests: FloatArray = per_model()
    """Own ones, all there ever were, as the next three: of these a balancer tells its peers."""
    sent_rows: FloatArray = per_model()
    done_requests: FloatArray = per_model()
    done_rows: FloatArray = per_model()
    charged_until_s: FloatArray = per_worker()
    """Until when the time of the device is charged to models; from then on it goes to the next that ends."""
    charged_s: FloatArray = per_model()
    """Seconds of the device, charged to the model's known requests as they ended, that no report settled yet."""
    ended_rows: FloatArray = per_model()
    """Rows of those requests."""


def batch_work_s(s: Service, w: int, m: int, rows: float, least_batches: float = 0.0) -> float:
    """Device seconds for `rows` rows of model `m` on worker `w`, in full batches, but no fewer than `least_batches`."""
    batches = max(math.ceil(rows / s.max_batch_rows[w, m]), least_batches)
    work_s: float = (s.fixed_s[w, m] * batches + s.per_row_s[w, m] * rows) / s.parallel[w, m]
    return work_s


def rows_per_request(executed_rows: float, requests: float) -> float:
    """Mean rows of the requests that were answered; at least one, as where nothing is known yet."""
    return max(executed_rows / requests, 1.0) if requests > 0 else 1.0


def recount(q: Queue, s: Service, w: int, m: int) -> None:
    """Bring the known work of one worker and model up to date after its rows or its service time changed."""
    executing_rows = q.known_rows[w, m] - q.waiting_rows[w, m]
    # Instances that are busy execute a batch each.
    executing_s = batch_work_s(s, w, m, executing_rows, min(executing_rows, s.instances[w, m]))
    waiting_s = batch_work_s(s, w, m, q.waiting_rows[w, m])
    before_s = q.known_work_model_s[w, m]
    q.executing_s[w] += executing_s - (before_s - q.waiting_model_s[w, m])
    q.known_work_s[w] += executing_s + waiting_s - before_s
    q.known_work_model_s[w, m] = executing_s + waiting_s
    q.waiting_model_s[w, m] = waiting_s
    if q.balancers[w] <= 1:
        q.forming_rows[w, m] = q.waiting_rows[w, m]


def recount_worker(q: Queue, s: Service, w: int) -> None:
    """`recount` for all models, after their service times changed: from nothing, so that what rounding left goes."""
    q.executing_s[w] = q.known_work_s[w] = 0.0
    q.known_work_model_s[w] = q.waiting_model_s[w] = 0.0
    for m in range(q.known_rows.shape[1]):
        recount(q, s, w, m)


def sent(q: Queue, s: Service, w: int, m: int, rows: float, now_s: float) -> None:
    """Count a known request in; the others are assumed to have sent as much as we did."""
    before_s = q.known_work_s[w]
    if q.in_flight[w] == 0:
        q.charged_until_s[w] = now_s
    q.in_flight[w] += 1
    q.known_requests[w, m] += 1
    if q.balancers[w] <= 1 and q.known_rows[w, m] < s.instances[w, m]:
        # An instance is idle. What executes beside it has been at it for no longer than it takes.
        q.progress_s[w] = max(q.progress_s[w], now_s - q.executing_s[w])
    else:
        q.waiting_rows[w, m] += rows
    q.known_rows[w, m] += rows
    recount(q, s, w, m)
    peers = q.balancers[w] - 1
    if peers > 0:
        forming = q.forming_rows[w, m] * float(work_left(q, w, now_s))
        _drain(q, w, now_s)
        q.peer_in_flight[w] += peers
        # Theirs and ours go into batches together: what these take is theirs as far as our own account has not got it.
        q.forming_rows[w, m] = forming + rows * (1 + peers)
        all_s = batch_work_s(s, w, m, q.forming_rows[w, m]) - batch_work_s(s, w, m, forming)
        q.peer_work_s[w] = max(q.peer_work_s[w] + all_s - (q.known_work_s[w] - before_s), 0.0)


def ended(q: Queue, s: Service, w: int, m: int, rows: float, now_s: float) -> None:
    """Count a known request out."""
    if q.in_flight[w]:
        q.charged_s[w, m] += max(now_s - q.charged_until_s[w], 0.0)
        q.charged_until_s[w] = now_s
        q.ended_rows[w, m] += rows
    q.in_flight[w] = max(q.in_flight[w] - 1, 0.0)
    q.known_requests[w, m] = max(q.known_requests[w, m] - 1, 0.0)
    # The rows of the last request out are taken as they are, so that rounding cannot leave a residue behind.
    q.known_rows[w, m] = max(q.known_rows[w, m] - rows, 0.0) if q.in_flight[w] else 0.0
    # A batch ended, and the next takes what waits. Batches that are shared with other balancers end unseen.
    executing_rows = s.max_batch_rows[w, m] * s.instances[w, m] if q.balancers[w] <= 1 else 0.0
    q.waiting_rows[w, m] = max(q.known_rows[w, m] - executing_rows, 0.0)
    recount(q, s, w, m)
    if not q.in_flight[w]:
        q.known_work_s[w] = q.executing_s[w] = 0.0
        q.known_requests[w] = q.known_rows[w] = q.waiting_rows[w] = q.known_work_model_s[w] = q.waiting_model_s[w] = 0.0
        if q.balancers[w] <= 1:
            q.forming_rows[w] = 0.0
    q.progress_s[w] = now_s


def settle(q: Queue, w: int, m: int, rows: float, executions: float, took_s: float, expected_s: float) -> float:
    """How long the device worked for a report's executions, as a multiple of `expected_s`; infinite: not known.

    While a device is busy, the time from one end to the next is what it worked for the batch that ended, or what
    several that overlap worked for together. Each end is charged with it, and what Triton counts beyond that was
    waiting. Charged are known requests alone; the rest of the `rows` are others', and took as much in proportion.

    What is left over, as sending takes time too, stays for ends that the next report tells of: one batch's at most.
    """
    own = min(q.ended_rows[w, m] / max(rows, 1.0), 1.0)
    charged_s = q.charged_s[w, m]
    q.ended_rows[w, m] = max(q.ended_rows[w, m] - rows, 0.0)
    q.charged_s[w, m] = min(max(charged_s - own * took_s, 0.0), expected_s / executions)
    return float(charged_s / (own * expected_s)) if own > 0 else math.inf


def observe_spread(q: Queue, w: int, executions: float, took: float) -> None:
    """Learn that `executions` took `took` times what was expected. A mean of so many varies by as many times less than
    each of them."""
    squared = min(executions * (took - 1) ** 2, _MOST_SPREAD)
    q.spread[w] += _SPREAD_GAIN * (squared - q.spread[w])


def forget_forming(q: Queue, w: int, models: FloatArray) -> None:
    """A report comes that tells anew what waits of these models, with several balancers."""
    if q.balancers[w] > 1:
        for i in range(len(models)):
            q.forming_rows[w, int(models[i])] = 0.0


def executing_of(q: Queue, w: int, m: int, pending: float, executing: float, peer_in_flight: float) -> float:
    """Requests of a model that execute at a worker of which a report came, or are on the way there.

    Where it contains what other balancers have in flight (`peer_in_flight`; not a number: it does not), those that do
    not wait are counted. Else what executes is `executing`, an average of the past.
    """
    if q.balancers[w] <= 1 or math.isnan(peer_in_flight):
        return executing
    return float(max(q.known_requests[w, m] + peer_in_flight - pending, 0.0))


def take_lying(q: Queue, s: Service, w: int, m: int, pending: float, executing: float, rows: float) -> float:
    """Seconds of the device for what a report says lies there of a model, in requests of so many rows each.

    With several balancers, what waits is noted for those who can join it, and what executes is in other batches.
    """
    if q.balancers[w] <= 1:
        there = pending + executing
        return batch_work_s(s, w, m, there * rows) if there > 0 else 0.0
    before = q.forming_rows[w, m]
    q.forming_rows[w, m] = before + pending * rows
    waiting_s = batch_work_s(s, w, m, q.forming_rows[w, m]) - batch_work_s(s, w, m, before)
    return waiting_s + batch_work_s(s, w, m, executing * rows)


def reported(q: Queue, w: int, pending: float, executing: float, work_s: float, now_s: float) -> None:
    """Take over what a report says lies at worker `w`: `pending` queued and `executing` requests, `work_s` in all.

    With one balancer the executing requests are known; counting their lagging average beside the exact count would only
    add noise, so then just what is queued beyond the known requests is somebody else's. With several, others have the
    work that known requests alone would not take: batches are shared.
    """
    q.reported_pending[w] = pending
    several = q.balancers[w] > 1
    total = pending + executing if several else pending
    own = q.in_flight[w]
    peers = max(total - own, 0.0)
    q.peer_in_flight[w] = peers
    if several:
        q.peer_work_s[w] = max(work_s - q.known_work_s[w], 0.0)
    else:
        q.peer_work_s[w] = work_s * peers / (pending + executing) if peers > 0 else 0.0
    q.peer_counted_s[w] = now_s


def _drain(q: Queue, w: int, now_s: float) -> None:
    """Advance the others' share of worker `w` to now."""
    work_s = q.peer_work_s[w]
    if work_s > 0:
        share = work_s / (work_s + q.known_work_s[w])
        left = max(1 - (now_s - q.peer_counted_s[w]) * share / work_s, 0.0)
        q.peer_in_flight[w] *= left
        q.peer_work_s[w] *= left
    else:
        q.peer_in_flight[w] = 0.0
    q.peer_counted_s[w] = now_s


def work_left(q: Queue, at: At, now_s: float | FloatArray) -> FloatArray:
    """The share of what was at a worker when others' requests were last counted that should still be there, 0 to 1."""
    total_s = q.peer_work_s[at] + q.known_work_s[at]
    left = _ONE - (now_s - q.peer_counted_s[at]) / np.maximum(total_s, _TINY_S)
    share: FloatArray = np.minimum(np.maximum(left, _ZERO), _ONE)
    return share


def peer_share_left(q: Queue, at: At, now_s: float | FloatArray) -> FloatArray:
    """The same of the others' requests; 0 where they have none, as own ones may share a batch that takes longer."""
    some = (q.peer_in_flight[at] > _ZERO) & (q.peer_work_s[at] > _ZERO)
    share: FloatArray = np.where(some, work_left(q, at, now_s), _ZERO)
    return share


def pending_now(q: Queue, at: At, left: FloatArray) -> FloatArray:
    """Requests at a worker now, queued or executing; `left`: `peer_share_left`."""
    return q.in_flight[at] + q.peer_in_flight[at] * left


def of_other_models(q: Queue, at: At, own: float | FloatArray, pending: float | FloatArray) -> FloatArray:
    """Those of the `pending` that are for other models than the one whose `known_requests` are `own`.

    Others' requests are taken to be of the same mix as the own ones; where there are none, to be of the model.
    """
    share = np.where(q.in_flight[at] > _ZERO, own / np.maximum(q.in_flight[at], _ONE), _ONE)
    found: FloatArray = pending * (_ONE - share)
    return found


def backlog_now_s(q: Queue, at: At, now_s: float | FloatArray, left: float | FloatArray | None) -> FloatArray:
    """Seconds until a worker has worked off what is there now; `left`: `peer_share_left`, None where all are known.

    What executes has been under way since the last sign of progress. Where executions take what they are expected to,
    the rest is left; where they differ, what has taken long takes longer yet: the mean rest of a lognormal time that
    has lasted as long as its mean is about its coefficient of variation of that mean, and so on in proportion. Overdue,
    as much is left as it has overrun; and nothing once it counts as ended.
    """
    executing_s = q.executing_s[at]
    elapsed_s = np.maximum(now_s - q.progress_s[at], _ZERO)
    rest_s = executing_s + (np.minimum(np.sqrt(q.spread[at]), _MOST_VARIED) - _ONE) * elapsed_s
    executes_s = np.minimum(np.maximum(rest_s, elapsed_s - executing_s), _GIVEN_UP * executing_s - elapsed_s)
    backlog_s = q.known_work_s[at] - executing_s + np.maximum(executes_s, _ZERO)
    if left is not None:
        backlog_s = backlog_s + q.peer_work_s[at] * left
    left_s: FloatArray = np.maximum(backlog_s, _ZERO)
    return left_s


def forming_now(q: Queue, at: At, now_s: float | FloatArray) -> FloatArray:
    """The share of `forming_rows` that should still wait, 0 to 1; with one balancer they are its own, and all do."""
    share: FloatArray = np.where(q.balancers[at] > _ONE, work_left(q, at, now_s), _ONE)
    return share


def completion_now_s(
    q: Queue,
    s: Service,
    at: At,
    rows: float | FloatArray,
    backlog_s: float | FloatArray,
    forming: float | FloatArray = 1.0,
) -> FloatArray:
    """Seconds until a request of `rows` rows would be complete: the backlog, and what it adds, which is little if it
    can join those that wait; `at`: worker and model; `forming`: `forming_now`.
    """
    waiting = q.forming_rows[at] * forming
    added_s = alone_s(s, at, waiting + rows) / s.parallel[at] - alone_s(s, at, waiting) / s.parallel[at]
    return backlog_s + added_s


def work_behind_now_s(
    q: Queue, s: Service, at: tuple[Any, ...], rows: float | FloatArray, forming: float | FloatArray
) -> FloatArray:
    """Device seconds of what waits there for other models and goes after a request; as `completion_now_s`.

    Models take turns, a batch of each instance at a time. A request is served in the turn that its model's queue has
    come to it, and of other models no more batches than these turns have room for go before.
    """
    turns = np.ceil((q.forming_rows[at] * forming + rows) / (s.max_batch_rows[at] * s.instances[at]))
    work_behind_s: FloatArray = turns * _ZERO
    for m in range(q.forming_rows.shape[-1]):
        # The request's own model among them, of which nothing is behind.
        of = (*at[:-1], m)
        there = q.forming_rows[of] * forming
        batches = np.ceil(there / s.max_batch_rows[of])
        ahead = np.minimum(turns * s.instances[of] / np.maximum(batches, _ONE), _ONE)
        work_behind_s = work_behind_s + alone_s(s, of, there) / s.parallel[of] * (_ONE - ahead)
    return work_behind_s
