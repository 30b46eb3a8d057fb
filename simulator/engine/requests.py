"""A request's way: sent, failed and sent again, ended."""

import numpy as np

from balancer.kernel.estimators import prefixes
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from simulator.engine import layout as at
from simulator.engine.compiled import exponential, from_source, inlined, mix, outlined, unit
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim
from simulator.result import Status

next_checkpoint = from_source(prefixes.next_checkpoint)
UNAVAILABLE, UNFINISHED = int(Status.UNAVAILABLE), int(Status.UNFINISHED)


@inlined
def uniform(sim: Sim, e: int, stream: int, k: int) -> float:
    """The draw `k` of a stream; no draw depends on the order of others."""
    return unit(mix(mix(sim.plan.seed[e] ^ np.uint64(stream)) ^ np.uint64(k)))


@inlined
def generates(sim: Sim, e: int, m: int) -> bool:
    """Whether a model generates, so that its requests have prompts."""
    return bool(sim.plan.model[e * sim.sizes.models + m, at.M_STEP_TOKENS] > 0)


@outlined
def lay_out_prefix(sim: Sim, e: int, k: int) -> float:
    """Write down what a prompt begins with, where the kernel looks for it; returns its tokens.

    Blocks stand for what production hashes: equal ones are equal beginnings.
    """
    d, x = sim.decision, sim.demand
    block_tokens, first, i = sim.plan.env[e, at.E_BLOCK_TOKENS], x.first_block[e, k], 0
    blocks = next_checkpoint(0)
    while blocks <= x.blocks[e, k] and i < MOST_CHECKPOINTS:
        d.checkpoint[e, i] = mix(np.uint64(x.block[e, first + blocks - 1]))
        d.checkpoint_tokens[e, i] = blocks * block_tokens
        # The whole of it is the last one.
        blocks = next_checkpoint(blocks) if blocks == x.blocks[e, k] else min(next_checkpoint(blocks), x.blocks[e, k])
        i += 1
    if i < MOST_CHECKPOINTS:
        d.checkpoint_tokens[e, i] = 0.0
    return float(x.tokens[e, k])


@inlined
def log_prompt(sim: Sim, e: int, k: int, w: int) -> None:
    """A worker is sent a prompt, of which its reports will tell other balancers."""
    x, g = sim.state, e * sim.sizes.workers + w
    x.log_prompt[g, x.whole[g, at.PROMPTS] % sim.sizes.log] = k
    x.whole[g, at.PROMPTS] += 1


@inlined
def count_system(sim: Sim, e: int, change: int, now_s: float) -> None:
    """Count requests in or out of the system, and integrate their number."""
    x = sim.state
    x.clock[e, at.INTEGRAL] += x.counts[e, at.IN_SYSTEM] * (now_s - x.clock[e, at.INTEGRAL_AT])
    x.clock[e, at.INTEGRAL_AT] = now_s
    x.counts[e, at.IN_SYSTEM] += change


@inlined
def append(sim: Sim, e: int, k: int, head: int, tail: int) -> None:
    """Put a request at the end of one of the environment's own queues."""
    x = sim.state
    x.next[e, k] = -1
    if x.counts[e, head] < 0:
        x.counts[e, head] = k
    else:
        x.next[e, x.counts[e, tail]] = k
    x.counts[e, tail] = k


@inlined
def count_coming(sim: Sim, e: int, k: int, change: int) -> None:
    x, demand = sim.state, sim.demand
    g, m, rows = e * sim.sizes.workers + x.server[e, k], demand.model[e, k], demand.rows[e, k]
    x.coming_rows[g, m] += change * rows
    x.coming_work[g, m] += change * rows * demand.work[e, k]


@inlined
def send(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    """Send a request on its way to a worker; where all ways take equally long, those on their way stay in order."""
    x, env = sim.state, sim.plan.env
    x.server[e, k] = w
    x.sent_s[e, k] = now_s
    x.stage[e, k] = at.ON_THE_WAY
    count_coming(sim, e, k, 1)
    if env[e, at.E_UNEQUAL_WAYS]:
        across_s = sim.plan.across_s[(e * sim.sizes.balancers + sim.demand.balancer[e, k]) * sim.sizes.workers + w]
        late_s = exponential(env[e, at.E_NET_JITTER], uniform(sim, e, 3, (k << 3) | x.attempts[e, k]))
        push(sim.heap, e, now_s + env[e, at.E_TO_WORKER] + across_s + late_s, at.REACH, k)
    else:
        append(sim, e, k, at.REACH_HEAD, at.REACH_TAIL)
    x.attempts[e, k] += 1


@inlined
def end(sim: Sim, e: int, k: int, status: int, now_s: float) -> None:
    """A request that was sent has its answer; its balancer will hear of it, and its client."""
    x, env = sim.state, sim.plan.env
    x.status[e, k] = status
    x.resolved_s[e, k] = now_s
    x.counts[e, at.ENDED] += 1
    count_system(sim, e, -1, now_s)
    append(sim, e, k, at.OUTCOME_HEAD, at.OUTCOME_TAIL)
    if env[e, at.E_CLIENTS] > 0:
        push(sim.heap, e, now_s + env[e, at.E_TO_CLIENT], at.ANSWER, 0)


@outlined
def fail(sim: Sim, e: int, k: int, now_s: float) -> None:
    """An attempt found nothing executed: the next fallback, or the end."""
    x = sim.state
    tried = x.attempts[e, k]
    if tried <= sim.plan.env[e, at.E_RETRIES] and tried <= x.fallback.shape[2]:
        w = x.fallback[e, k, tried - 1]
        if w >= 0:
            send(sim, e, k, w, now_s)
            return
    end(sim, e, k, UNAVAILABLE, now_s)
