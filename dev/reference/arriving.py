"""Requests as they arrive: a row of each column of the arrivals."""

import numpy as np

from balancer.kernel.estimators.prefixes import next_checkpoint
from balancer.scheduler.events import SentPrompt
from dev.reference.batcher import LiveRequest
from policies.hashing import mix
from simulator.arrivals import Arrivals, Extras, Prompts
from simulator.spec import FleetSpec


class Arriving:
    def __init__(self, fleet: FleetSpec, arrivals: Arrivals) -> None:
        self._fleet, self._arrivals = fleet, arrivals
        self.extras = arrivals.extras or Extras.none(len(arrivals))
        self.prompts = arrivals.prompts or _no_prompts(len(arrivals))
        self._names = arrivals.numbered_blocks() if arrivals.prompts is not None else self.prompts.block
        self._first_block = np.cumsum(self.prompts.blocks) - self.prompts.blocks

    def request(self, index: int, client: int, now_s: float) -> LiveRequest:
        a = self._arrivals
        m = int(a.model[index])
        batching = self._fleet.models[m].batching
        priority = int(a.priority[index]) or batching.default_priority
        return LiveRequest(
            index=index,
            model=m,
            rows=int(a.rows[index]),
            work=float(a.work[index]),
            key=int(a.key[index]),
            level=min(priority, batching.priority_levels) - 1,
            balancer=int(a.balancer[index]),
            client=client,
            arrival_s=now_s,
            sequence=int(self.extras.sequence[index]),
            starts=bool(self.extras.starts[index]),
            responses=int(self.extras.responses[index]),
            first_share=float(self.extras.first_share[index]),
            tokens=int(self.prompts.tokens[index]),
            output=int(self.prompts.output[index]),
            blocks=self._blocks(index, m),
        )

    def prefix(self, index: int) -> tuple[tuple[int, float], ...]:
        """What balancers know of a prompt's beginning."""
        first, blocks, found = self._first_block[index], int(self.prompts.blocks[index]), []
        end = next_checkpoint(0)
        while end < blocks:
            found.append(end)
            end = next_checkpoint(end)
        ends = [*found, blocks] if blocks else []
        return tuple((mix(int(self._names[first + end - 1])), float(end * self.prompts.block_tokens)) for end in ends)

    def prompt(self, request: LiveRequest) -> list[tuple[int, SentPrompt]]:
        """Who sent it, and what others will hear of it; nothing of a request without a prompt."""
        model = self._fleet.models[request.model]
        if model.generation is None:
            return []
        return [(request.balancer, SentPrompt(model.name, float(request.tokens), self.prefix(request.index)))]

    def _blocks(self, index: int, m: int) -> tuple[tuple[int, int], ...]:
        first = self._first_block[index]
        return tuple((m, int(block)) for block in self.prompts.block[first : first + self.prompts.blocks[index]])


def _no_prompts(requests: int) -> Prompts:
    ones = np.ones(requests, np.int32)
    return Prompts(ones, ones, np.zeros(requests, np.int32), 1, np.zeros(0, np.int64))
