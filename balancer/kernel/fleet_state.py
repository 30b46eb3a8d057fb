"""One fleet's state in a block: the scratch and the estimators' arrays, while workers and models come and go."""

import math
from typing import Any

import numpy as np

from balancer.kernel import block as blocks
from balancer.kernel.block import ArrayPlace, Block, FleetSizes, Memory, ordinary_memory
from balancer.kernel.estimators.caches import Caches
from balancer.kernel.estimators.columns import declared
from balancer.kernel.estimators.generation import Lengths
from balancer.kernel.estimators.latency import Latency
from balancer.kernel.estimators.prefixes import Prefixes
from balancer.kernel.estimators.queue import Queue
from balancer.kernel.estimators.service import Service
from balancer.kernel.estimators.tokens import Tokens
from balancer.kernel.policy_answers import Answering, options_of
from balancer.kernel.state import ROOM, AnyArray, DecisionScratch, Options, lengths_of

KINDS: dict[str, type[Any]] = {
    "decision": DecisionScratch,
    **{"queue": Queue, "service": Service, "latency": Latency, "tokens": Tokens},
    **{"caches": Caches, "prefixes": Prefixes, "prefill": Service, "decode": Service, "lengths": Lengths},
}
ESTIMATORS = tuple(KINDS)[1:]
RECORDS = {name: declared(kind) for name, kind in KINDS.items()}
FIELDS = {f"{record}.{name}": field for record, fields in RECORDS.items() for name, field in fields.items()}
"""The same, in the order in which they lie in a block."""
_AXES = {name: axes.split() for name, (axes, _, _) in FIELDS.items()}
_WORKER = ("n", "r")
_KEPT = FIELDS.keys() - {f"decision.{name}" for name in ROOM}
_LEAST_ROOM = FleetSizes(8, 4)


def _shapes(sizes: FleetSizes) -> dict[str, tuple[int, ...]]:
    lengths = lengths_of(*sizes)
    return {name: tuple([lengths[axis] for axis in axes]) for name, axes in _AXES.items()}


class FleetBlock:
    """The fleet's state of a fleet that begins without workers and models, and the block that they lie in.

    All arrays are replaced when workers or models come or go, and `decision` with them, which tells who keeps them. The
    memory is the same as long as there is room in it.
    """

    decision: DecisionScratch
    queue: Queue
    service: Service
    latency: Latency
    tokens: Tokens
    caches: Caches
    prefixes: Prefixes
    prefill: Service
    decode: Service
    lengths: Lengths

    def __init__(self, memory: Memory = ordinary_memory, stamp: str = "") -> None:
        self._memory, self._stamp = memory, stamp
        self.sizes = FleetSizes(0, 0)
        self.block = self._new_block(_LEAST_ROOM)
        self.block.arrays = {name: self.block.view(name, shape) for name, shape in _shapes(self.sizes).items()}
        for name, kind in KINDS.items():
            setattr(self, name, kind(**dict.fromkeys(RECORDS[name])))
        self.resize(self.sizes)

    def _new_block(self, room: FleetSizes) -> Block:
        parts = {}
        for name, shape in _shapes(room).items():
            dtype: np.dtype[Any] = np.dtype(FIELDS[name][1])
            parts[name] = ArrayPlace(dtype, math.prod(shape) * dtype.itemsize)
        return Block(parts, room, self._memory, stamp=self._stamp)

    def add(self, *, workers: int = 0, models: int = 0) -> None:
        """Append rows and columns, at their start values."""
        self.resize(FleetSizes(self.sizes.workers + workers, self.sizes.models + models))

    def remove_worker(self, row: int) -> None:
        """Later workers move up by one."""
        self.resize(FleetSizes(self.sizes.workers - 1, self.sizes.models), without=row)

    def resize(self, sizes: FleetSizes, without: int | None = None, *, anew: bool = False) -> None:
        """Lay all arrays out anew; `without`: the row of a worker that goes; `anew`: in another block."""
        before, generation = self.block, self.block.generation + 1
        room = FleetSizes(*(_doubled(there, size) for there, size in zip(before.room, sizes, strict=True)))
        if anew or room != before.room:
            self.block = self._new_block(room)
        arrays = {}
        for name, shape in _shapes(sizes).items():
            new = arrays[name] = self.block.view(name, shape)
            if name not in _KEPT:
                continue
            old, axes, start = before.arrays[name], _AXES[name], FIELDS[name][2]
            lead = axes[:1] == ["e"]
            if self.block is not before or old.shape[lead + 1 :] != shape[lead + 1 :]:
                assert without is None  # of what is kept, workers are the first axis
                _move(old, new, start)
            elif without is not None and axes[lead] in _WORKER:
                _close(old, lead, without)
            else:
                new[(slice(None),) * lead + (slice(old.shape[lead], None),)] = start
        self.block.lay_out(arrays, sizes, generation)
        if self.block is not before:
            before.replaced()
        self.sizes = sizes
        for record, fields in RECORDS.items():
            parts = {name: arrays[f"{record}.{name}"] for name in fields}
            if record == "decision":
                self.decision = DecisionScratch(**parts)
            else:
                vars(getattr(self, record)).update(parts)


def _doubled(room: int, size: int) -> int:
    while room < size:
        room *= 2
    return room


def _close(array: AnyArray, axis: int, row: int) -> None:
    lead = (slice(None),) * axis
    array[(*lead, slice(row, -1))] = array[(*lead, slice(row + 1, None))]


def _move(old: AnyArray, new: AnyArray, start: Any) -> None:
    """What was in the old array, and `start` elsewhere; both may lie at the same place."""
    kept = old.copy()
    new[...] = start
    new[tuple([slice(length) for length in kept.shape])] = kept


def options_block(
    found: Answering, room: FleetSizes, entry: str, memory: Memory = ordinary_memory, stamp: str = ""
) -> Block:
    """What a policy's answer is given, in a block of its own, which never changes but for its scratch.

    Args:
        found: The policy's answer.
        room: For fleets of at most so many workers.
        entry: The library's function for it.
        memory: Where it lies.
        stamp: Of the sources.
    """
    arrays = arrays_of(options_of(found, room.workers))
    parts = {name: ArrayPlace(array.dtype, array.nbytes) for name, array in arrays.items()}
    block = Block(parts, room, memory, kind=blocks.OPTIONS, stamp=stamp, entry=entry)
    views = {name: block.view(name, array.shape) for name, array in arrays.items()}
    for name, view in views.items():
        view[...] = arrays[name]
    block.lay_out(views, FleetSizes(0, 0), 1)
    return block


def arrays_of(options: Options) -> dict[str, AnyArray]:
    """All arrays, in order; those of the weights stand between."""
    weights = {f"weights.{name}": array for name, array in options.weights._asdict().items()}
    return {"values": options.values, **weights, "scratch": options.scratch}
