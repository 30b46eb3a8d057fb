"""Continuous batching at one worker and model: who runs, what memory holds, what a step computes.

Written apart from `simulator.engine.generating`, which is held against it; slow and plain.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from simulator.spec import GeneratingDevice, GenerationSpec


class Asked(Protocol):
    """A request."""

    level: int
    """Of the queue, from 0."""
    tokens: int
    """Of its prompt."""
    output: int
    """Tokens to generate."""
    generated: int
    cached: float
    """Tokens that were there when it was admitted first; NaN before."""
    ended: bool
    """Nobody waits for it any more."""

    @property
    def blocks(self) -> Sequence[Hashable]:
        """That its prompt begins with; equal where all that is before them is equal too."""


R = TypeVar("R", bound=Asked)


class Waiting(Protocol[R]):
    levels: list[list[R]]
    """Those of the first go first."""

    def __len__(self) -> int: ...

    def remove(self, request: R) -> None: ...


@dataclass(eq=False)
class Running(Generic[R]):
    request: R
    todo: int
    """Tokens to compute before the next is generated."""
    context: int
    """Tokens computed."""
    shared: int
    """Leading blocks that are used together with others."""
    own: int
    """Tokens held for it alone."""
    admitted_s: float
    chunk: int = 0


class Batch(Generic[R]):
    def __init__(self, spec: GenerationSpec, device: GeneratingDevice, block_tokens: int) -> None:
        self.spec, self.device, self.block_tokens = spec, device, block_tokens
        self._forget()

    def _forget(self) -> None:
        self.stepping = False
        self.running: list[Running[R]] = []
        self.users: Counter[Hashable] = Counter()
        """By block; none has 0."""
        self.unused: OrderedDict[Hashable, None] = OrderedDict()
        """Cached blocks without users; the first goes first."""

    def clear(self) -> list[R]:
        """Forget everything; returns who ran."""
        running = [sequence.request for sequence in self.running]
        self._forget()
        return running

    @property
    def held(self) -> int:
        return len(self.users) * self.block_tokens + sum(sequence.own for sequence in self.running)

    @property
    def decoding(self) -> int:
        return sum(sequence.todo == 0 for sequence in self.running)

    def begin(self, queue: Waiting[R], now_s: float) -> tuple[int, float]:
        """Choose what the next step computes: its tokens, and what attention adds to its seconds."""
        fits = self.held + self.decoding <= self.device.memory_tokens
        while self.held + self.decoding > self.device.memory_tokens and len(self.running) > 1:
            last = self.running.pop()
            self._release(last)
            if not last.request.ended:
                queue.levels[last.request.level].insert(0, last.request)
        if fits:
            self._admit(queue, now_s)
        free = self.device.memory_tokens - self.held - self.decoding
        while self.unused and len(self.unused) * self.block_tokens > free:
            self.unused.popitem(last=False)
        left = self.spec.step_tokens - self.decoding
        context = pairs = 0
        for sequence in self.running:
            if sequence.todo == 0:
                sequence.chunk = 1
                context += sequence.context
            else:
                sequence.chunk = min(sequence.todo, left)
                left -= sequence.chunk
                pairs += sequence.chunk * (2 * sequence.context + sequence.chunk)
        tokens = sum(sequence.chunk for sequence in self.running)
        return tokens, self.device.context_s * context + self.device.attention_s * (pairs * 0.5)

    def _admit(self, queue: Waiting[R], now_s: float) -> None:
        decoding = self.decoding
        while len(queue) and len(self.running) < self.spec.max_sequences:
            request = next(iter(level[0] for level in queue.levels if level))
            prompt = request.tokens + request.generated
            most = min(len(request.blocks), (prompt - 1) // self.block_tokens)
            cached = list(takewhile(lambda block: block in self.users or block in self.unused, request.blocks[:most]))
            own = prompt - len(cached) * self.block_tokens
            woken = sum(block in self.unused for block in cached) * self.block_tokens
            if self.running and self.held + woken + own + decoding > self.device.memory_tokens:
                return
            queue.remove(request)
            for block in cached:
                self.unused.pop(block, None)
                self.users[block] += 1
            context = len(cached) * self.block_tokens
            request.cached = float(context) if math.isnan(request.cached) else request.cached
            self.running.append(Running(request, own, context, len(cached), own, now_s))

    def end(self) -> Iterator[tuple[Running[R], bool]]:
        """The step is done: sequences that got a token; whether it was the last, or nobody waits for more."""
        self.stepping = False
        for sequence in list(self.running):
            request, generates = sequence.request, True
            sequence.context += sequence.chunk
            if sequence.todo == 0:
                sequence.own += 1
            else:
                sequence.todo -= sequence.chunk
                self._share(sequence)
                generates = sequence.todo == 0
            request.generated += generates
            leaves = request.generated == request.output or request.ended
            if leaves:
                self.running.remove(sequence)
                self._release(sequence)
            if generates or leaves:
                yield sequence, leaves

    def _share(self, sequence: Running[R]) -> None:
        for block in sequence.request.blocks[sequence.shared : sequence.context // self.block_tokens]:
            self.unused.pop(block, None)
            self.users[block] += 1
            sequence.shared += 1
            sequence.own -= self.block_tokens

    def _release(self, sequence: Running[R]) -> None:
        for block in reversed(sequence.request.blocks[: sequence.shared]):
            self.users[block] -= 1
            if self.users[block] == 0:
                del self.users[block]
                self.unused[block] = None
