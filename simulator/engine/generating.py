"""Models that generate: continuous batching with chunked prefill, paged memory and a prefix cache.

Rules (vLLM's, version 1, but for what `README.md` says):

- A step computes at most `M_STEP_TOKENS` tokens: one of each sequence that decodes, then prompts in the order in which
  their sequences were admitted, in chunks.
- A sequence is admitted when memory has room for its prompt, less what is cached of it, and for one token more of each
  that decodes. What is computed of its prompt is shared from the end of the step on, block by block.
- Where decoding ones lack room, the sequence that was admitted last gives its memory back, and waits in front of all
  others to have all its tokens computed anew; nobody is admitted then.
- Cached blocks that no sequence uses make room when it is needed: those first that nobody has used for longest, of one
  prompt the last blocks first.
"""

import numpy as np

from simulator.engine import device
from simulator.engine import layout as at
from simulator.engine.batcher import noise, put_in_front, take
from simulator.engine.compiled import inlined, outlined
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim
from simulator.engine.reports import log_execution
from simulator.engine.requests import UNFINISHED, end
from simulator.result import Status

_OK = int(Status.OK)


@inlined
def _block(sim: Sim, e: int, k: int, i: int) -> int:
    demand = sim.demand
    return int(demand.block[e, demand.first_block[e, k] + i])


@inlined
def _begin_unused(sim: Sim, g: int, m: int, block: int) -> None:
    """Nobody uses a cached block any more: it is the last of those to go."""
    x, mine = sim.state, sim.state.running[g, m]
    last = mine[at.NEWEST]
    x.older[g, block], x.newer[g, block] = last, -1
    if last < 0:
        mine[at.OLDEST] = block
    else:
        x.newer[g, last] = block
    mine[at.NEWEST] = block
    mine[at.UNUSED] += 1


@inlined
def _end_unused(sim: Sim, g: int, m: int, block: int) -> None:
    x, mine = sim.state, sim.state.running[g, m]
    older, newer = x.older[g, block], x.newer[g, block]
    if older < 0:
        mine[at.OLDEST] = newer
    else:
        x.newer[g, older] = newer
    if newer < 0:
        mine[at.NEWEST] = older
    else:
        x.older[g, newer] = older
    mine[at.UNUSED] -= 1


@inlined
def _make_room(sim: Sim, e: int, g: int, m: int, more: int) -> None:
    """Drop cached blocks that nobody uses until so many tokens more fit, or none is left."""
    mine, block_tokens = sim.state.running[g, m], sim.plan.env[e, at.E_BLOCK_TOKENS]
    free = sim.plan.generating[g, m, at.G_MEMORY] - mine[at.HELD] - more
    while mine[at.UNUSED] > 0 and mine[at.UNUSED] * block_tokens > free:
        block = mine[at.OLDEST]
        _end_unused(sim, g, m, block)
        sim.state.users[g, block] = at.ABSENT


@inlined
def _release(sim: Sim, e: int, g: int, m: int, k: int) -> None:
    """Give back the memory of a sequence."""
    x, mine = sim.state, sim.state.running[g, m]
    mine[at.HELD] -= x.own[e, k]
    if x.todo[e, k] == 0:
        mine[at.DECODING] -= 1
        mine[at.CONTEXT] -= x.context[e, k]
    for i in range(x.shared[e, k] - 1, -1, -1):
        block = _block(sim, e, k, i)
        x.users[g, block] -= 1
        if x.users[g, block] == 0:
            mine[at.HELD] -= int(sim.plan.env[e, at.E_BLOCK_TOKENS])
            _begin_unused(sim, g, m, block)
    x.own[e, k] = x.shared[e, k] = x.context[e, k] = 0


@inlined
def _share(sim: Sim, e: int, g: int, m: int, k: int) -> None:
    """Let others use the whole blocks of a prompt that are computed by now."""
    x, mine, block_tokens = sim.state, sim.state.running[g, m], int(sim.plan.env[e, at.E_BLOCK_TOKENS])
    i = x.shared[e, k]
    while i < sim.demand.blocks[e, k] and (i + 1) * block_tokens <= x.context[e, k]:
        block = _block(sim, e, k, i)
        if x.users[g, block] > 0:
            mine[at.HELD] -= block_tokens  # another computed it meanwhile: one copy stays
        elif x.users[g, block] == 0:
            _end_unused(sim, g, m, block)
        x.users[g, block] = max(x.users[g, block], 0) + 1
        x.own[e, k] -= block_tokens
        i += 1
    x.shared[e, k] = i


@outlined
def _preempt(sim: Sim, e: int, g: int, m: int) -> None:
    """The sequence that was admitted last gives way."""
    x, mine = sim.state, sim.state.running[g, m]
    before, k = -1, mine[at.FIRST]
    while x.next[e, k] >= 0:
        before, k = k, x.next[e, k]
    if before < 0:
        mine[at.FIRST] = -1
    else:
        x.next[e, before] = -1
    mine[at.LAST] = before
    _release(sim, e, g, m, k)
    x.executing[g, m] -= 1
    x.whole[g, at.EXECUTING] -= 1
    if x.status[e, k] == UNFINISHED:
        put_in_front(sim, e, g, m, k)


@inlined
def _first_waiting(sim: Sim, g: int, m: int) -> int:
    level = 0
    while sim.state.queue_count[g, m, level] == 0:
        level += 1
    return level


@outlined
def _admit(sim: Sim, e: int, g: int, m: int, now_s: float) -> None:
    """Admit those who wait, in order, while there is room for the first of them."""
    x, mine = sim.state, sim.state.running[g, m]
    memory, block_tokens = sim.plan.generating[g, m, at.G_MEMORY], int(sim.plan.env[e, at.E_BLOCK_TOKENS])
    most = sim.plan.model[e * sim.sizes.models + m, at.M_MAX_SEQUENCES]
    while x.queued[g, m] > 0 and x.executing[g, m] < most:
        level = _first_waiting(sim, g, m)
        k = x.queue_head[g, m, level]
        prompt = sim.demand.tokens[e, k] + x.generated[e, k]
        cached = woken = 0
        while cached < sim.demand.blocks[e, k] and (cached + 1) * block_tokens < prompt:
            users = x.users[g, _block(sim, e, k, cached)]
            if users == at.ABSENT:
                break
            woken += users == 0
            cached += 1
        own = prompt - cached * block_tokens
        if x.executing[g, m] > 0 and mine[at.HELD] + woken * block_tokens + own + mine[at.DECODING] > memory:
            return
        take(sim, e, g, m, level)
        x.queued[g, m] -= 1
        x.whole[g, at.QUEUED] -= 1
        x.executing[g, m] += 1
        x.whole[g, at.EXECUTING] += 1
        x.stage[e, k] = at.EXECUTES
        for i in range(cached):
            block = _block(sim, e, k, i)
            if x.users[g, block] == 0:
                _end_unused(sim, g, m, block)
            x.users[g, block] += 1
        mine[at.HELD] += woken * block_tokens + own
        x.own[e, k], x.shared[e, k] = own, cached
        x.context[e, k], x.todo[e, k] = cached * block_tokens, own
        if np.isnan(x.cached[e, k]):
            x.cached[e, k] = cached * block_tokens
        x.admitted_s[e, k] = now_s
        x.next[e, k] = -1
        if mine[at.LAST] < 0:
            mine[at.FIRST] = k
        else:
            x.next[e, mine[at.LAST]] = k
        mine[at.LAST] = k


@outlined
def _start(sim: Sim, e: int, g: int, m: int, now_s: float) -> None:
    """Start a step of the running sequences."""
    x, mine = sim.state, sim.state.running[g, m]
    tokens, pairs, k = mine[at.DECODING], 0, mine[at.FIRST]
    left = int(sim.plan.model[e * sim.sizes.models + m, at.M_STEP_TOKENS]) - tokens
    prompts = x.executing[g, m] - tokens
    while prompts > 0:
        if x.todo[e, k] > 0:
            chunk = min(x.todo[e, k], left)
            x.chunk[e, k] = chunk
            left -= chunk
            tokens += chunk
            pairs += chunk * (2 * x.context[e, k] + chunk)
            prompts -= 1
        k = x.next[e, k]
    slot = 0
    while x.slot_state[g, slot] != at.FREE:
        slot += 1
    attention_s = sim.plan.generating[g, m, at.G_CONTEXT] * mine[at.CONTEXT]
    attention_s += sim.plan.generating[g, m, at.G_ATTENTION] * (pairs * 0.5)
    left_s = (sim.plan.device_s[sim.plan.table[g, m], tokens] + attention_s) / sim.plan.worker[g, at.W_SPEED]
    left_s *= noise(sim, e, g, m)
    if x.whole[g, at.STARTED_UP] < sim.plan.env[e, at.E_COLD]:
        left_s *= sim.plan.env[e, at.E_COLD_FACTOR]
    x.busy_instances[g, m] = 1
    x.slot_model[g, slot] = m
    x.slot_head[g, slot] = x.running[g, m, at.FIRST]
    x.slot_start_s[g, slot] = now_s
    x.slot_left_s[g, slot] = left_s
    x.whole[g, at.STARTED] += 1
    x.whole[g, at.STARTED_UP] += 1
    device.enqueue(sim, e, g, slot, now_s)


@outlined
def look(sim: Sim, e: int, g: int, m: int, now_s: float) -> None:
    """Start the next step, unless one is under way or nobody is there."""
    x, mine = sim.state, sim.state.running[g, m]
    if not x.whole[g, at.UP] or x.busy_instances[g, m] > 0:
        return
    memory = sim.plan.generating[g, m, at.G_MEMORY]
    fits = mine[at.HELD] + mine[at.DECODING] <= memory
    while mine[at.HELD] + mine[at.DECODING] > memory and x.executing[g, m] > 1:
        _preempt(sim, e, g, m)
    if fits and x.queued[g, m] > 0:
        _admit(sim, e, g, m, now_s)
    if x.executing[g, m] > 0:
        _make_room(sim, e, g, m, mine[at.DECODING])
        _start(sim, e, g, m, now_s)


@inlined
def _advance(sim: Sim, e: int, g: int, m: int, k: int, now_s: float) -> None:
    """What a step did for a sequence."""
    x, mine = sim.state, sim.state.running[g, m]
    if x.todo[e, k] == 0:
        x.context[e, k] += 1
        x.own[e, k] += 1
        mine[at.HELD] += 1
        mine[at.CONTEXT] += 1
    else:
        x.context[e, k] += x.chunk[e, k]
        x.todo[e, k] -= x.chunk[e, k]
        _share(sim, e, g, m, k)
        if x.todo[e, k] > 0:
            return
        mine[at.DECODING] += 1
        mine[at.CONTEXT] += x.context[e, k]
    x.generated[e, k] += 1
    if x.generated[e, k] == 1:
        x.first_s[e, k] = now_s
        # Of one that is complete the end tells it.
        if x.status[e, k] == UNFINISHED and sim.demand.output[e, k] > 1:
            push(sim.heap, e, now_s + sim.plan.env[e, at.E_OUTCOME], at.FIRST_TOKEN, k)


@outlined
def finish(sim: Sim, e: int, g: int, slot: int, now_s: float) -> None:
    """A step has ended: sequences that are complete, or that nobody waits for, leave."""
    x = sim.state
    m = x.slot_model[g, slot]
    x.slot_state[g, slot] = at.FREE
    x.busy_instances[g, m] = 0
    before, k = -1, x.running[g, m, at.FIRST]
    while k >= 0:
        following = x.next[e, k]
        _advance(sim, e, g, m, k, now_s)
        complete = x.generated[e, k] == sim.demand.output[e, k]
        if not complete and x.status[e, k] == UNFINISHED:
            before = k
        else:
            if before < 0:
                x.running[g, m, at.FIRST] = following
            else:
                x.next[e, before] = following
            _release(sim, e, g, m, k)
            x.executing[g, m] -= 1
            x.whole[g, at.EXECUTING] -= 1
            if x.status[e, k] == UNFINISHED:
                end(sim, e, k, _OK, now_s)
                took_s = now_s - x.admitted_s[e, k]
                log_execution(sim, e, g, m, 1, 1, took_s)
                x.compute_s[g, m] += took_s
        k = following
    x.running[g, m, at.LAST] = before


@outlined
def forget(sim: Sim, g: int) -> None:
    """A worker has crashed: nothing is held, nothing cached."""
    x = sim.state
    x.users[g] = at.ABSENT
    for m in range(sim.sizes.models):
        x.running[g, m] = 0
        x.running[g, m, : at.UNUSED] = -1
