"""Reports: taken by the workers' agents, on their way, and what balancers learn from them."""

import math

from balancer.kernel import counting, reports
from balancer.kernel.reports import (
    BEGINS,
    EXECUTED_ROWS,
    EXECUTING,
    EXECUTIONS,
    HELD_TOKENS,
    INSTANCES,
    LATE,
    LINE,
    MAX_BATCH_ROWS,
    MEMORY_TOKENS,
    MODEL,
    PEER_IN_FLIGHT,
    PENDING,
    ROWS,
    SECONDS,
    SUCCEEDED,
    TOTAL_EXECUTIONS,
)
from simulator.engine import layout as at
from simulator.engine.compiled import exponential, from_source, inlined, outlined
from simulator.engine.event_heap import push
from simulator.engine.knowledge import balancers, forget_eligible, row, tells_peers
from simulator.engine.layout import Sim
from simulator.engine.requests import lay_out_prefix, uniform

_order_of, _take_report = from_source(reports.order_of), from_source(reports.take_report)
_count_peer_prompt = from_source(counting.count_peer_prompt)


@inlined
def _own_requests(sim: Sim, r: int, m: int) -> float:
    return sim.queue.sent_requests[r, m] - sim.queue.done_requests[r, m]


@inlined
def sample(sim: Sim, e: int, w: int, now_s: float) -> int:
    """The agent of a worker takes a report; returns its place in the ring."""
    x, models = sim.state, sim.sizes.models
    g = e * sim.sizes.workers + w
    number = x.whole[g, at.REPORT_NUMBER]
    x.whole[g, at.REPORT_NUMBER] = number + 1
    place = number % sim.sizes.snapshots
    x.snapshot[g, place, 0] = x.whole[g, at.LOGGED]
    x.snapshot[g, place, 1] = x.whole[g, at.EPOCH]
    x.snapshot[g, place, 2] = x.whole[g, at.INCARNATION]
    x.snapshot[g, place, 3] = number
    x.snapshot[g, place, 4] = x.whole[g, at.PROMPTS]
    for b in range(balancers(sim, e)):
        x.snapshot_waiting[g, place, b] = sim.prefixes.waiting_tokens[row(sim, e, b, w)]
    kept = int(sim.plan.env[e, at.E_SAMPLES])
    taken = x.whole[g, at.SAMPLED]
    oldest = (taken - min(taken, kept)) % kept
    for m in range(models):
        x.snapshot_pending[g, place, m] = x.queued[g, m]
        x.snapshot_loaded[g, place, m] = x.loaded[g, m]
        executing = 0.0
        if sim.plan.model[e * models + m, at.M_STEP_TOKENS] > 0:
            executing = float(x.executing[g, m])  # which servers that generate tell
        elif taken > 0:
            growth_s = x.compute_s[g, m] - x.sample_compute_s[g, oldest, m]
            elapsed_s = now_s - x.sample_s[g, oldest]
            if elapsed_s > 0:
                most = sim.plan.model[e * models + m, at.M_MAX_ROWS] * sim.plan.instances[g, m]
                executing = min(growth_s / elapsed_s, most)
        x.snapshot_executing[g, place, m] = executing
        x.snapshot_held[g, place, m] = x.running[g, m, at.HELD]
        x.sample_compute_s[g, taken % kept, m] = x.compute_s[g, m]
        for b in range(balancers(sim, e)):
            x.snapshot_in_flight[g, place, b, m] = _own_requests(sim, row(sim, e, b, w), m)
    x.sample_s[g, taken % kept] = now_s
    x.whole[g, at.SAMPLED] = taken + 1
    return place


@outlined
def send_report(sim: Sim, e: int, w: int, now_s: float) -> None:
    x, env = sim.state, sim.plan.env
    place = sample(sim, e, w, now_s)
    number = x.snapshot[e * sim.sizes.workers + w, place, 3]
    for b in range(balancers(sim, e)):
        way = w * balancers(sim, e) + b
        k = (way << 40) | number
        if env[e, at.E_LOSS] > 0 and uniform(sim, e, 5, k) < env[e, at.E_LOSS]:
            continue
        at_s = now_s + env[e, at.E_DELAY]
        if env[e, at.E_JITTER] > 0:
            at_s += exponential(env[e, at.E_JITTER], uniform(sim, e, 4, k))
        push(sim.heap, e, at_s, at.REPORT, (way << at.REPORT_BITS) | (number & ((1 << at.REPORT_BITS) - 1)))


@inlined
def next_sample(sim: Sim, e: int, w: int, now_s: float) -> None:
    period_s = sim.plan.env[e, at.E_PERIOD]
    phase = uniform(sim, e, 7, w)
    i = math.floor(now_s / period_s - phase) + 1
    at_s = (phase + i) * period_s
    while at_s <= now_s:
        i += 1
        at_s = (phase + i) * period_s
    sim.state.real[e * sim.sizes.workers + w, at.NEXT_SAMPLE] = at_s
    push(sim.heap, e, at_s, at.SAMPLE, w)


@outlined
def take_sample(sim: Sim, e: int, w: int, now_s: float) -> None:
    """A sample is due; one that is down or silent takes none, until `report_again`."""
    x = sim.state
    g = e * sim.sizes.workers + w
    if x.real[g, at.NEXT_SAMPLE] == now_s and x.whole[g, at.UP] and not x.whole[g, at.IS_SILENT]:
        send_report(sim, e, w, now_s)
        next_sample(sim, e, w, now_s)


@outlined
def report_again(sim: Sim, e: int, w: int, now_s: float) -> None:
    """A worker that is up and not silent takes a sample now, and regular ones from now on."""
    x = sim.state
    g = e * sim.sizes.workers + w
    if x.whole[g, at.UP] and not x.whole[g, at.IS_SILENT]:
        x.real[g, at.NEXT_SAMPLE] = now_s
        push(sim.heap, e, now_s, at.SAMPLE, w)


@inlined
def find_snapshot(sim: Sim, e: int, w: int, low_number: int) -> int:
    """The place in the ring of the report whose number ends in these bits; -1 where it was overwritten."""
    g = e * sim.sizes.workers + w
    span = 1 << at.REPORT_BITS
    last = sim.state.whole[g, at.REPORT_NUMBER] - 1
    number = last - ((last - low_number) % span)
    place = number % sim.sizes.snapshots
    return place if number >= 0 and sim.state.snapshot[g, place, 3] == number else -1


@outlined
def _note_executed(sim: Sim, e: int, r: int, m: int, line: int, noted: int) -> int:
    """Write what was executed since the last report, as `kernel.reports` takes it; returns how many there are now."""
    known = sim.known
    for size in range(1, known.executions.shape[2]):
        new = known.executions[r, m, size] - known.executions_seen[r, m, size]
        if new > 0:
            batch = known.batches[e, noted]
            batch[LINE], batch[ROWS], batch[EXECUTIONS] = line, size, new
            batch[SECONDS] = known.seconds[r, m, size] - known.seconds_seen[r, m, size]
            noted += 1
            known.executions_seen[r, m, size] = known.executions[r, m, size]
            known.seconds_seen[r, m, size] = known.seconds[r, m, size]
    return noted


@inlined
def log_execution(sim: Sim, e: int, g: int, m: int, rows: int, requests: int, seconds: float) -> None:
    """Count an execution that ended; whoever has not heard of the one that is overwritten learns of it now."""
    x, known = sim.state, sim.known
    logged = x.whole[g, at.LOGGED]
    place = logged % sim.sizes.log
    if logged >= sim.sizes.log:
        for b in range(balancers(sim, e)):
            r = row(sim, e, b, g - e * sim.sizes.workers)
            if known.incarnation[r] == x.whole[g, at.INCARNATION] and known.position[r] == logged - sim.sizes.log:
                _count_execution(sim, r, g, place)
                known.position[r] += 1
    x.log_model[g, place] = m
    x.log_rows[g, place] = rows
    x.log_requests[g, place] = requests
    x.log_s[g, place] = seconds
    x.whole[g, at.LOGGED] = logged + 1


@inlined
def _count_execution(sim: Sim, r: int, g: int, place: int) -> None:
    known = sim.known
    m, rows = sim.state.log_model[g, place], sim.state.log_rows[g, place]
    known.executions[r, m, rows] += 1
    known.executions_all[r, m] += 1
    known.executed_rows[r, m] += rows
    known.answered[r, m] += sim.state.log_requests[g, place]
    known.seconds[r, m, rows] += sim.state.log_s[g, place]


@inlined
def _peer_in_flight(sim: Sim, e: int, b: int, g: int, place: int, m: int) -> float:
    """What all balancers but `b` had in flight when the report was taken."""
    requests = 0.0
    for c in range(balancers(sim, e)):
        if c != b:
            requests += sim.state.snapshot_in_flight[g, place, c, m]
    return requests


@inlined
def _peer_waiting_tokens(sim: Sim, e: int, b: int, g: int, place: int) -> float:
    tokens = 0.0
    for c in range(balancers(sim, e)):
        if c != b:
            tokens += sim.state.snapshot_waiting[g, place, c]
    return tokens


@outlined
def _hear_of_prompt(sim: Sim, e: int, b: int, w: int, k: int, now_s: float) -> None:
    """A report tells balancer `b` of a prompt that was sent to worker `w`."""
    if sim.demand.balancer[e, k] != b:
        tokens = lay_out_prefix(sim, e, k)
        _count_peer_prompt(sim, e, w, row(sim, e, b, w), sim.demand.model[e, k], tokens, now_s)


@outlined
def receive(sim: Sim, e: int, b: int, w: int, place: int, now_s: float) -> None:
    """`Fleet.report`: a balancer takes a report over; late ones, and those on the way when a stream broke, are lost."""
    x, known = sim.state, sim.known
    g, r = e * sim.sizes.workers + w, row(sim, e, b, w)
    position, epoch, incarnation, number, prompts = x.snapshot[g, place]
    if epoch != x.whole[g, at.EPOCH]:
        return
    order = _order_of((epoch, incarnation, number), (epoch, known.incarnation[r], known.report_number[r]))
    if order == LATE:
        return
    if order == BEGINS:
        known.incarnation[r] = incarnation
        known.position[r] = known.prompts[r] = 0
        known.executions[r], known.seconds[r] = 0.0, 0.0
        known.executions_seen[r], known.seconds_seen[r] = 0.0, 0.0
        known.executions_all[r] = known.executed_rows[r] = known.answered[r] = 0.0
    known.report_number[r] = number
    for entry in range(max(known.position[r], x.whole[g, at.LOGGED] - sim.sizes.log), position):
        _count_execution(sim, r, g, entry % sim.sizes.log)
    some = position > known.position[r]
    known.position[r] = max(position, known.position[r])
    if not known.ready[r]:
        known.ready[r] = 1
        forget_eligible(sim, e, b)
    lines, noted = 0, 0
    for m in range(sim.sizes.models):
        loaded = x.snapshot_loaded[g, place, m]
        if loaded != known.loaded[r, m]:
            known.loaded[r, m] = loaded
            forget_eligible(sim, e, b)
        if loaded == at.NEVER_LOADED:
            continue
        if some:
            noted = _note_executed(sim, e, r, m, lines, noted)
        line = known.lines[e, lines]
        line[MODEL], line[MAX_BATCH_ROWS], line[INSTANCES] = m, 1, 1
        if loaded == at.LOADED:
            line[MAX_BATCH_ROWS] = sim.plan.model[e * sim.sizes.models + m, at.M_MAX_ROWS]
            line[INSTANCES] = sim.plan.instances[g, m]
        line[PENDING], line[EXECUTING] = x.snapshot_pending[g, place, m], x.snapshot_executing[g, place, m]
        line[PEER_IN_FLIGHT] = _peer_in_flight(sim, e, b, g, place, m) if loaded == at.LOADED else math.nan
        line[TOTAL_EXECUTIONS] = known.executions_all[r, m]
        line[MEMORY_TOKENS], line[HELD_TOKENS] = sim.plan.generating[g, m, at.G_MEMORY], x.snapshot_held[g, place, m]
        line[EXECUTED_ROWS], line[SUCCEEDED] = known.executed_rows[r, m], known.answered[r, m]
        lines += 1
    sim.prefixes.peer_waiting_tokens[r] = _peer_waiting_tokens(sim, e, b, g, place)
    batches, begins = known.batches[e], order == BEGINS
    unheard = 1 if tells_peers(sim, e) else balancers(sim, e)
    if _take_report(sim, e, r, begins, known.lines[e], lines, batches, noted, unheard, now_s):
        forget_eligible(sim, e, b)
    for entry in range(max(known.prompts[r], x.whole[g, at.PROMPTS] - sim.sizes.log), prompts):
        _hear_of_prompt(sim, e, b, w, x.log_prompt[g, entry % sim.sizes.log], now_s)
    known.prompts[r] = max(prompts, known.prompts[r])
