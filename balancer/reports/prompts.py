"""Prompts on the wire: each balancer tells a worker's agent which ones it sent there, and the agent tells the others.

So a balancer knows which beginnings a worker has cached of other balancers' prompts, and of its own from before a
restart.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from balancer import bounds
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from balancer.reports import report_pb2
from balancer.scheduler.events import SentPrompt

_KEPT = 2048
"""Prompts by an agent: what they begin with fills the memory of any worker, or nearly."""
_MOST_TOKENS = 2**32 - 1
"""The largest `uint32`, which is the type of `prefix_tokens`."""


def no_prompts(_worker: str) -> tuple[SentPrompt, ...]:
    """Of a balancer that sends none."""
    return ()


def encode_prompts(prompts: Iterable[SentPrompt]) -> Iterator[report_pb2.SentPrompt]:
    for model, tokens, prefix in prompts:
        known = prefix[:MOST_CHECKPOINTS]
        yield report_pb2.SentPrompt(
            model=model,
            tokens=tokens,
            prefix=[found for found, _ in known],
            prefix_tokens=[int(min(of, _MOST_TOKENS)) for _, of in known],
        )


def decode_prompts(entries: Collection[report_pb2.SentPrompt]) -> tuple[SentPrompt, ...]:
    """What a message tells of.

    Raises:
        OutOfBoundsError: if anything in it is.
    """
    bounds.at_most("prompts", len(entries), bounds.MAX_PROMPTS_TOLD)
    return tuple(map(_decode, entries))


def _decode(entry: report_pb2.SentPrompt) -> SentPrompt:
    bounds.at_most("prompts.prefix", len(entry.prefix), MOST_CHECKPOINTS)
    if len(entry.prefix) != len(entry.prefix_tokens):
        rule = f"has as many entries as prompts.prefix, {len(entry.prefix)}"
        raise bounds.OutOfBoundsError("prompts.prefix_tokens", f"{len(entry.prefix_tokens)} entries", rule)
    tokens, last = bounds.number("prompts.tokens", entry.tokens, 1.0, bounds.MAX_PROMPT_TOKENS), 0
    for of in entry.prefix_tokens:
        last = int(bounds.number("prompts.prefix_tokens", of, last + 1, tokens))
    prefix = zip(entry.prefix, map(float, entry.prefix_tokens), strict=True)
    return SentPrompt(bounds.text("prompts.model", entry.model), tokens, tuple(prefix))


class PromptLog:
    """The last prompts that balancers sent to an agent's worker, numbered as the agent hears of them."""

    def __init__(self) -> None:
        self._prompts: deque[tuple[str, report_pb2.SentPrompt]] = deque(maxlen=_KEPT)
        self._incarnation = -1
        self.end = 0
        """The next one's number."""

    def add(self, balancer: str, prompts: Iterable[report_pb2.SentPrompt]) -> None:
        """`balancer`: its address."""
        for prompt in prompts:
            self._prompts.append((balancer, prompt))
            self.end += 1

    def belongs_to(self, incarnation: int) -> None:
        """Prompts of an earlier incarnation of the worker are lost with it."""
        if incarnation != self._incarnation:
            self._prompts.clear()
        self._incarnation = incarnation

    def since(self, number: int) -> Iterator[tuple[int, str, report_pb2.SentPrompt]]:
        """From this number on: the number, who sent it, and the prompt."""
        first = self.end - len(self._prompts)
        for place in range(max(number - first, 0), len(self._prompts)):
            yield first + place, *self._prompts[place]


class Listener:
    """What an agent tells one balancer: all prompts from before its stream, then those that other balancers send."""

    def __init__(self, log: PromptLog, balancer: str) -> None:
        self._log, self._balancer = log, balancer
        self._from, self._next = log.end, 0

    def next(self) -> list[report_pb2.SentPrompt]:
        """The prompts for the next message, `MAX_PROMPTS_TOLD` at most. They count as told, so send that message."""
        told: list[report_pb2.SentPrompt] = []
        for number, balancer, prompt in self._log.since(self._next):
            if len(told) == bounds.MAX_PROMPTS_TOLD:
                return told
            self._next = number + 1
            if number < self._from or balancer != self._balancer:
                told.append(prompt)
        return told
