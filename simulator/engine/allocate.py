"""From what is simulated to the engine's arrays: allocated once for the largest environment, then filled for each."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from balancer.kernel.estimators.caches import PLACES
from balancer.kernel.estimators.columns import Fields, declared
from balancer.kernel.estimators.prefixes import PREFIX_PLACES
from balancer.kernel.fleet_state import KINDS
from balancer.kernel.reports import BATCH_COLUMNS, LINE_COLUMNS
from balancer.kernel.state import FOUND_COLUMNS, lengths_of
from balancer.scheduler.holding.state import Held, lengths_of_held
from policies.base import IntArray
from simulator.arrivals import Arrivals
from simulator.engine import layout as at
from simulator.engine.check import MOST_PREFERRED
from simulator.engine.layout import (
    BalancerKnowledge,
    EngineDemand,
    EnginePlan,
    EngineSizes,
    EngineState,
    Heap,
    PendingRequests,
    Sim,
)
from simulator.spec import FleetSpec

_KINDS: dict[str, type[Any]] = {
    **{
        "plan": EnginePlan,
        "demand": EngineDemand,
        "state": EngineState,
        "pending": PendingRequests,
        "heap": Heap,
        "known": BalancerKnowledge,
        "held": Held,
    },
    **KINDS,
}
_RECORDS = {name: declared(kind) for name, kind in _KINDS.items()}
_TOGETHER = ("e k", "g log")
"""Axes of what is looked up one entry at a time, and lies together for it."""
_FILLED = ("held.settings", "held.models", "held.weight", "held.undo")
_LEAST_LOG, _MOST_LOG = 128, 4096
_EXECUTIONS_PER_S = 2000.0
"""That a log has room for until a balancer has heard of them; more are learned of a little early."""
_WARM = 1 << 40
"""Executions that a worker is taken to have started when it is there from the start."""
_KEPT_S = 0.15
"""Seconds of samples over which an agent averages what executes."""


class TooLargeError(ValueError):
    """A fleet does not fit into the arrays."""


def sizes(fleets: Sequence[FleetSpec], requests: int) -> EngineSizes:
    return EngineSizes(
        workers=max(len(fleet.workers) for fleet in fleets),
        models=max(len(fleet.models) for fleet in fleets),
        balancers=max(fleet.balancers for fleet in fleets),
        requests=requests,
        slots=max(sum(model.instances for model in fleet.models) for fleet in fleets),
        levels=max(model.batching.priority_levels for fleet in fleets for model in fleet.models),
        log=max(_log(fleet) for fleet in fleets),
        snapshots=max(_snapshots(fleet) for fleet in fleets),
    )


def _snapshots(fleet: FleetSpec) -> int:
    """Reports that may be on their way at once, with 20 mean delays of jitter."""
    reports = fleet.reports
    on_the_way = math.ceil((fleet.report_delay_s + 20 * reports.jitter_s) / reports.period_s) + len(fleet.faults)
    return int(min(4 + on_the_way, 1024))


def _log(fleet: FleetSpec) -> int:
    reports = fleet.reports
    executions = _EXECUTIONS_PER_S * (reports.period_s + fleet.report_delay_s + 20 * reports.jitter_s)
    return int(min(max(2 ** math.ceil(math.log2(executions)), _LEAST_LOG), _MOST_LOG))


def samples(fleet: FleetSpec) -> int:
    """How many of its samples an agent keeps."""
    return max(1, math.ceil(_KEPT_S / fleet.reports.period_s))


class PromptRoom(NamedTuple):
    """What the prompts of one environment have at most."""

    blocks: int = 1
    names: int = 1
    """Blocks that are not equal."""


def prompt_room(arrivals: Sequence[Arrivals]) -> PromptRoom:
    names = [one.numbered_blocks() for one in arrivals if one.prompts is not None]
    return PromptRoom(*(max((of(each) for each in names if len(each)), default=1) for of in (len, _count)))


def _count(names: IntArray) -> int:
    return int(names.max()) + 1


def _lengths(z: EngineSizes, fleets: Sequence[FleetSpec], timeline: int, room: PromptRoom) -> dict[str, int]:
    e, n, m, b = len(fleets), z.workers, z.models, z.balancers
    faults = max(len(fleet.faults) for fleet in fleets)
    holds = any(fleet.settings.holding.models for fleet in fleets)
    models = [model for fleet in fleets for model in fleet.models]
    generates = any(model.generation for model in models)
    told = any(fleet.tells_peers for fleet in fleets)
    # A request on its way is in the heap where ways are unequal, and so are a client's next one, when it gives up, the
    # end of a hold, a first token, and what peers are told of it.
    events = (3 + holds + generates + 2 * told) * z.requests + n * (z.slots + m + 4 + b * z.snapshots) + 4 * faults + 64
    most_rows = max(model.batching.max_batch_rows for model in models)
    return {
        **lengths_of(n, m),
        **lengths_of_held(z.requests, holds),
        # Nobody reads the tables of keys where a hash places all of them.
        "places": 1 if all(fleet.settings.sticky_keys for fleet in fleets) else PLACES,
        "prefix_places": PREFIX_PLACES if generates else 1,
        **{"e": e, "b": b, "g": e * n, "r": e * b * n, "f": e * b, "em": e * m, "ebm": e * b * m},
        **{"k": z.requests, "x": z.requests, "t": timeline, "two": 2, "five": 5, "heap": events, "faults": faults},
        **{"env": at.ENV_COLUMNS, "model": at.MODEL_COLUMNS, "worker": at.WORKER_COLUMNS, "preferred": MOST_PREFERRED},
        **{"clock": at.CLOCK_COLUMNS, "count": at.COUNT_COLUMNS, "real": at.REAL_COLUMNS, "whole": at.WHOLE_COLUMNS},
        **{"slots": z.slots, "levels": z.levels + 1, "log": z.log, "snapshots": z.snapshots},
        "found": FOUND_COLUMNS,
        "fallbacks": max(min(fleet.retries, fleet.settings.max_fallbacks) for fleet in fleets),
        "samples": max(map(samples, fleets)),
        "entries": max(1, *(fleet.cache.entries for fleet in fleets)),
        **{"sizes": 1 + max(model.table_sizes for model in models), "generating": at.GENERATING_COLUMNS},
        **{"prompts": z.requests if generates else 1, "block": room.blocks, "names": room.names},
        "running": at.RUNNING_COLUMNS,
        **{"rows": 1 + most_rows, "line": LINE_COLUMNS, "batch": BATCH_COLUMNS, "executed": m * most_rows},
        "tables": len({s for model in models for s in model.service.values()}),
    }


def check_fits(sim: Sim, fleet: FleetSpec, arrivals: Arrivals) -> None:
    """Raise `ValueError` where a fleet is larger in anything than those that the arrays were made for."""
    needed, there = sizes([fleet], len(arrivals)), sim.sizes
    has = {
        "rows": sim.known.executions.shape[2],
        "sizes": sim.plan.device_s.shape[1],
        "prompts": sim.demand.tokens.shape[1],
        "block": sim.demand.block.shape[1],
        "names": sim.state.users.shape[1],
        "samples": sim.state.sample_s.shape[1],
        "entries": sim.state.cache.shape[1],
        "places": sim.caches.key.shape[1],
        "prefix_places": sim.prefixes.key.shape[1],
        "faults": sim.plan.fault_kind.shape[1],
        "fallbacks": sim.state.fallback.shape[2],
    }
    lengths = _lengths(needed, [fleet], 0, prompt_room([arrivals]))
    wants = {**needed._asdict(), **{name: lengths[name] for name in has}}
    for name, room in {**there._asdict(), **has}.items():
        if name == "requests" and wants[name] != room:
            raise ValueError(f"{wants[name]} requests for an environment made for {room}: give as many")
        if wants[name] > room:
            raise TooLargeError(f"the fleet needs {wants[name]} {name}, and the environments were made for {room}")


class _Arena:
    """One block of memory that all arrays are cut from: in huge pages, where many small arrays would each have their
    own, and looking up addresses would cost more than the work. What is looked up one entry at a time (a request, an
    execution) lies together, in as few cache lines as it fits; what is scanned over workers lies array by array.
    """

    def __init__(self, lengths: dict[str, int], kinds: Sequence[Fields]) -> None:
        self._lengths = lengths
        self._used = 0
        parts = [part for arrays in kinds for part in self._parts(arrays)]
        self._memory = np.zeros(sum(_padded(math.prod(shape) * dtype.itemsize) for _, shape, dtype in parts), np.uint8)

    def _shape(self, axes: str) -> tuple[int, ...]:
        return tuple(self._lengths[axis] for axis in axes.split())

    def _parts(self, arrays: Fields) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        """Name, shape and type of each array; those together come as one of records, without a name."""
        for together in _TOGETHER:
            entries = [
                (name, dtype, self._shape(axes[len(together) :]))
                for name, (axes, dtype, _) in arrays.items()
                if axes.startswith(together)
            ]
            if entries:
                yield "", self._shape(together), np.dtype(entries, align=True)
        for name, (axes, dtype, _) in arrays.items():
            if not axes.startswith(_TOGETHER):
                yield name, self._shape(axes), np.dtype(dtype)

    def make(self, arrays: Fields) -> dict[str, at.AnyArray]:
        made: dict[str, at.AnyArray] = {}
        for name, shape, dtype in self._parts(arrays):
            count = math.prod(shape) * dtype.itemsize
            array = self._memory[self._used : self._used + count].view(dtype).reshape(shape)
            self._used += _padded(count)
            made.update({name: array} if name else {field: array[field] for field in dtype.names or ()})
        for name, (_, _, start) in arrays.items():
            if start:
                made[name][...] = start
        return made


def _padded(count: int) -> int:
    """To whole cache lines, and some more: arrays at distances of a power of two would all share a few cache sets."""
    return -(-count // 64) * 64 + 13 * 64


def allocate(fleets: Sequence[FleetSpec], arrivals: Sequence[Arrivals], timeline: int = 0) -> Sim:
    """Arrays for as many environments as there are fleets, with room for the largest, to be filled by `fill`."""
    z = sizes(fleets, len(arrivals[0]))
    arena = _Arena(_lengths(z, fleets, timeline, prompt_room(arrivals)), list(_RECORDS.values()))
    return Sim(z, **{name: _KINDS[name](**arena.make(arrays)) for name, arrays in _RECORDS.items()})


def reset(sim: Sim, e: int) -> None:
    z, x = sim.sizes, sim.state
    of_one = {"e": 1, "g": z.workers, "r": z.balancers * z.workers, "f": z.balancers, "ebm": z.balancers * z.models}
    parts = {axis: slice(e * length, (e + 1) * length) for axis, length in of_one.items()}
    for record in ("state", "known", "held", *KINDS):
        for name, (axes, _, start) in _RECORDS[record].items():
            # All else of the scratch is filled, or nothing of it lasts; so is what is held by.
            if (record != "decision" or axes == "r") and f"{record}.{name}" not in _FILLED:
                getattr(getattr(sim, record), name)[parts[axes.split()[0]]] = start
    workers = parts["g"]
    x.running[workers][..., : at.UNUSED] = -1
    sim.heap.size[e] = sim.heap.lasting[e] = 0
    x.real[workers, at.DEVICE_END] = np.inf
    x.real[workers, at.NEXT_SAMPLE] = np.inf
    x.real[workers, at.SLOWNESS] = 1.0
    x.loaded[workers] = sim.plan.loaded[workers]
    for column in (at.UP, at.JOINED, at.READY):
        x.whole[workers, column] = sim.plan.worker[workers, at.W_PRESENT]
    x.whole[workers, at.STARTED_UP] = np.where(x.whole[workers, at.UP], _WARM, 0)
    for column in (at.REACH_HEAD, at.OUTCOME_HEAD, at.DECIDING):
        x.counts[e, column] = -1
    x.counts[e, at.NEXT_ANSWERED] = min(int(sim.plan.env[e, at.E_CLIENTS]), z.requests)
