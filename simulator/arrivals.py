"""The requests of one run: columns of equal length. The same arrivals serve every policy that is compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies.base import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Extras:
    """What only some requests have: a sequence, several responses, a client that gives up; shape `(k,)` each."""

    sequence: npt.NDArray[np.int32]
    """Index of the sequence that it belongs to, from 0, below the number of requests; -1: none. Its key is that of the
    sequence."""
    starts: BoolArray
    """Whether it carries START: the first of its sequence."""
    responses: npt.NDArray[np.int32]
    """Of a stream; 0: it is none, and has one answer."""
    first_share: FloatArray
    """After which share of its time on the device the first response is sent; 1: with the last."""
    patience_s: FloatArray
    """From arrival until the client gives up; infinite: never."""

    @staticmethod
    def none(requests: int) -> Extras:
        return Extras(
            sequence=np.full(requests, -1, np.int32),
            starts=np.zeros(requests, np.bool_),
            responses=np.zeros(requests, np.int32),
            first_share=np.ones(requests),
            patience_s=np.full(requests, np.inf),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """What models that generate are asked; shape `(k,)` each but the last."""

    tokens: npt.NDArray[np.int32]
    """Of the prompt, at least 1; of no meaning where the model does not generate."""
    output: npt.NDArray[np.int32]
    """Tokens to generate, at least 1."""
    blocks: npt.NDArray[np.int32]
    """How many whole blocks the prompt begins with; none: nothing of it is shared."""
    block_tokens: int
    """Of a block, in which caches keep prefixes."""
    block: npt.NDArray[np.int64]
    """`(sum(blocks),)`: the blocks of the first request, then those of the second, and so on. Equal numbers are equal
    prefixes, up to the end of the block."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests in order of time, shape `(k,)` each; stack runs with `simulator.batch`."""

    time_s: FloatArray
    """Arrival at the gateway, ascending from 0. In a closed loop: ignored but for the order."""
    model: npt.NDArray[np.int16]
    """Index into `FleetSpec.models`."""
    rows: npt.NDArray[np.int32]
    """Batch size, 1 to the model's `max_batch_rows`; the router sees it."""
    work: npt.NDArray[np.float64]
    """Factor on the request's service time that the router does not see (the tokens it will generate, say); mean 1."""
    key: npt.NDArray[np.uint64]
    """Hash of the routing key; 0: none."""
    deadline_s: FloatArray
    """From arrival; infinite: none."""
    priority: npt.NDArray[np.int16]
    """0: the model's default; 1 the highest."""
    balancer: npt.NDArray[np.int16]
    """Which balancer decides, 0 to `FleetSpec.balancers - 1`."""
    tenant: npt.NDArray[np.int16]
    """Index of the tenant; for reports by tenant."""
    extras: Extras | None = None
    prompts: Prompts | None = None
    clients: int = 0
    """0: open loop. Else a closed loop of so many clients: the first requests arrive at their times, each next one
    when a client gets its answer."""

    @property
    def keyed(self) -> bool:
        """Whether any request outside of sequences has a key."""
        extras = self.extras
        return bool((self.key if extras is None else self.key[extras.sequence < 0]).any())

    def numbered_blocks(self) -> IntArray:
        """The blocks of all prompts as numbers from 0, equal where blocks of one model are; `(sum(blocks),)`."""
        if self.prompts is None or not len(self.prompts.block):
            return np.zeros(0, np.int64)
        named = self.model.repeat(self.prompts.blocks) * (self.prompts.block.max() + 1) + self.prompts.block
        found: IntArray = np.unique(named, return_inverse=True)[1]
        return found

    def __len__(self) -> int:
        return len(self.time_s)
