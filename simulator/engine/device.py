"""A worker's device: executions that run at once share it, others wait for it."""

import numpy as np

from simulator.engine import layout as at
from simulator.engine.compiled import inlined
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim


@inlined
def _rate(sim: Sim, g: int) -> float:
    x = sim.state
    if x.whole[g, at.STALLED]:
        return 0.0
    together = 1 + sim.plan.worker[g, at.W_INTERFERENCE] * (x.whole[g, at.ACTIVE] - 1)
    return 1.0 / together / x.real[g, at.SLOWNESS]


@inlined
def bring_up_to_date(sim: Sim, g: int, now_s: float) -> None:
    x = sim.state
    active = x.whole[g, at.ACTIVE]
    if active:
        elapsed_s = now_s - x.real[g, at.AT]
        rate = _rate(sim, g)
        if elapsed_s > 0 and rate > 0:
            x.real[g, at.BUSY] += elapsed_s
            for slot in range(sim.sizes.slots):
                if x.slot_state[g, slot] == at.RUNS:
                    x.slot_left_s[g, slot] -= elapsed_s * rate
    x.real[g, at.AT] = now_s


@inlined
def schedule(sim: Sim, e: int, g: int, now_s: float) -> None:
    """Foresee the next end; `bring_up_to_date` comes before whatever changes it, this after."""
    x = sim.state
    x.real[g, at.DEVICE_END] = np.inf
    rate = _rate(sim, g) if x.whole[g, at.ACTIVE] > 0 else 0.0
    if rate == 0:
        return
    least_s, first = np.inf, -1
    for slot in range(sim.sizes.slots):
        if x.slot_state[g, slot] == at.RUNS and x.slot_left_s[g, slot] < least_s:
            least_s, first = x.slot_left_s[g, slot], slot
    end_s = now_s + max(least_s, 0.0) / rate
    x.whole[g, at.NEXT_SLOT] = first
    x.real[g, at.DEVICE_END] = end_s
    push(sim.heap, e, end_s, at.DEVICE_DONE, g - e * sim.sizes.workers)


@inlined
def enqueue(sim: Sim, e: int, g: int, slot: int, now_s: float) -> None:
    """An execution wants the device: it runs, or waits behind the others."""
    x = sim.state
    if x.whole[g, at.ACTIVE] < sim.plan.worker[g, at.W_CONCURRENCY]:
        bring_up_to_date(sim, g, now_s)
        x.slot_state[g, slot] = at.RUNS
        x.slot_began_s[g, slot] = now_s
        x.whole[g, at.ACTIVE] += 1
        schedule(sim, e, g, now_s)
    else:
        x.slot_state[g, slot] = at.WAITS
        x.slot_order[g, slot] = x.whole[g, at.ORDER]
        x.whole[g, at.ORDER] += 1
        x.whole[g, at.WAITING] += 1


@inlined
def leave(sim: Sim, e: int, g: int, now_s: float) -> None:
    """The next execution to end is done, its slot no longer runs, and those that wait take its place."""
    x = sim.state
    bring_up_to_date(sim, g, now_s)
    x.slot_state[g, x.whole[g, at.NEXT_SLOT]] = at.WAITS  # until its caller frees it; it must not be taken up again
    x.slot_order[g, x.whole[g, at.NEXT_SLOT]] = -1
    x.whole[g, at.ACTIVE] -= 1
    while x.whole[g, at.WAITING] > 0 and x.whole[g, at.ACTIVE] < sim.plan.worker[g, at.W_CONCURRENCY]:
        first = -1
        for slot in range(sim.sizes.slots):
            waits = x.slot_state[g, slot] == at.WAITS and x.slot_order[g, slot] >= 0
            if waits and (first < 0 or x.slot_order[g, slot] < x.slot_order[g, first]):
                first = slot
        x.slot_state[g, first] = at.RUNS
        x.slot_began_s[g, first] = now_s
        x.whole[g, at.ACTIVE] += 1
        x.whole[g, at.WAITING] -= 1
    schedule(sim, e, g, now_s)
