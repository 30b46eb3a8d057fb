"""Clients that give up."""

import numpy as np

from balancer.kernel import counting
from simulator.engine import knowledge
from simulator.engine import layout as at
from simulator.engine.batcher import take_out
from simulator.engine.compiled import from_source, inlined, outlined
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim
from simulator.engine.requests import UNFINISHED, count_coming, count_system, generates
from simulator.result import Status

count_out = from_source(counting.count_out)
CANCELLED = int(Status.CANCELLED)


@inlined
def foresee(sim: Sim, e: int, k: int, now_s: float) -> None:
    if sim.plan.env[e, at.E_EXTRAS] and sim.demand.patience_s[e, k] < np.inf:
        push(sim.heap, e, now_s + sim.demand.patience_s[e, k], at.GIVE_UP, k)


@outlined
def give_up(sim: Sim, e: int, k: int, now_s: float) -> None:
    """The client of a request gives up; who is held is taken out of the line by the caller."""
    x = sim.state
    if x.status[e, k] != UNFINISHED:
        return
    stage = x.stage[e, k]
    x.status[e, k] = CANCELLED
    x.resolved_s[e, k] = now_s
    x.counts[e, at.ENDED] += 1
    count_system(sim, e, -1, now_s)
    if stage == at.ON_THE_WAY:
        count_coming(sim, e, k, -1)
    elif stage == at.IN_QUEUE:
        take_out(sim, e, k)
    if stage != at.NOT_PLACED:
        x.counts[e, at.LEAVING] += 1
        push(sim.heap, e, now_s + sim.plan.env[e, at.E_OUTCOME], at.LEFT, k)
    if sim.plan.env[e, at.E_CLIENTS] > 0:
        push(sim.heap, e, now_s, at.ANSWER, 0)


@outlined
def hear_void(sim: Sim, e: int, k: int, now_s: float) -> None:
    """A balancer hears of an end that says nothing of the worker: it counts the request out."""
    x, d = sim.state, sim.demand
    x.received[e, x.counts[e, at.RECEIVED]] = k
    x.counts[e, at.RECEIVED] += 1
    if generates(sim, e, d.model[e, k]):
        knowledge.hear_computed(sim, e, k)
    r = knowledge.row(sim, e, d.balancer[e, k], x.picked[e, k])
    knowledge.tell_peers(sim, e, k, 1, now_s)
    count_out(sim, e, r, d.model[e, k], d.rows[e, k], now_s)
